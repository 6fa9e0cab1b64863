"""Imported last by the server that processes are forked from (commands.py): what it has imported stays as it is.

The collector of garbage would look at all of it in every process, and write into it: the kernel then copies each page.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
