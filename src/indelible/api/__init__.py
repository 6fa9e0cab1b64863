"""What a program sees of us: the values that are answered, and the events of a feed."""
