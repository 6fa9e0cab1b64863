"""The library: `indelible.open`, and what it gives."""
