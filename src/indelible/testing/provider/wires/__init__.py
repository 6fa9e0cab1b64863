"""The provider's side of the three wire formats: reading a request, and writing a reply."""
