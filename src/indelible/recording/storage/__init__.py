"""Where debug records are stored."""
