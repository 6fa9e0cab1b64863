"""Models: the protocol that the loop calls (protocol.py), and its implementations."""

from indelible.models.protocol import Call, CallOptions, Model, PromptMessage

__all__ = ["Call", "CallOptions", "Model", "PromptMessage"]
