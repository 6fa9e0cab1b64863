"""Models that think in their text: moving the thinking to a reasoning block."""
