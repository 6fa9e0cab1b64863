"""The built-in model that needs no key and no network."""
