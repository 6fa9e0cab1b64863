"""The providers: one package per wire format, and the demo model."""
