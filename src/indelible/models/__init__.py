"""Models: the port that the loop calls (protocol.py) and what stands behind it."""

from indelible.models.protocol import Call, CallOptions, Model, PromptMessage

__all__ = ["Call", "CallOptions", "Model", "PromptMessage"]
