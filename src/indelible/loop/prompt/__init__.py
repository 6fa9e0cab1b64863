"""What the model gets: from the history to a legal prompt."""
