"""`python -m indelible` is `indelible`."""

from indelible.cli.main import main

main()
