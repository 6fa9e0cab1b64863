"""The AI SDK's UI message stream: what `useChat` and `DefaultChatTransport` speak (docs/ai-sdk.md)."""
