"""Why a model call failed: signals, classification, and the sentence for the user."""
