"""What went wrong with a model: signals, classification, and the sentence for the user."""
