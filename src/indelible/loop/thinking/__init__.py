"""Models that think in their text: the thinking is moved to a reasoning block."""
