"""Tools for those who work on Indelible: `make vendor`, `make pictures`."""
