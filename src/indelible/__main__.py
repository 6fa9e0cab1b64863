"""`python -m indelible` is `indelible`."""

from indelible.cli import main

main()
