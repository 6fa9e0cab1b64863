"""Models: the port that the loop calls (port.py) and what stands behind it."""

from indelible.models.port import Call, CallOptions, Model, PromptMessage

__all__ = ["Call", "CallOptions", "Model", "PromptMessage"]
