"""`python -m indelible` is `indelible`."""

from indelible.cli.cli import main

main()
