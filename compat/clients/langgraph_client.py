"""LangGraph's agent with a tool and a memory, on both wires. `python langgraph_client.py URL RELEASE`."""

import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"fog in {city}"


where = {"base_url": f"{sys.argv[1]}/v1", "api_key": "none", "model": "compat"}
for more in ({}, {"use_responses_api": True}, {"use_responses_api": True, "use_previous_response_id": True}):
    agent = create_agent(ChatOpenAI(**where, **more), tools=[weather], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}

    def ask(text: str, agent=agent, thread=thread) -> str:
        return agent.invoke({"messages": [{"role": "user", "content": text}]}, thread)["messages"][-1].text

    assert ask("My name is Ada") == "You said: My name is Ada"
    assert ask("Use the tool") == "The tool says: fog in Oslo."
    lines = ask("recite").splitlines()
    assert lines[:2] == ["user: My name is Ada", "assistant: You said: My name is Ada"], lines
    assert lines[2:6] == [
        "user: Use the tool",
        'assistant: called weather({"city":"Oslo"})',
        "tool: fog in Oslo",
        "assistant: The tool says: fog in Oslo.",
    ], lines
    streamed = agent.stream({"messages": [{"role": "user", "content": "Use the tool"}]}, thread, stream_mode="messages")
    text = "".join(chunk.text for chunk, _ in streamed if chunk.type == "AIMessageChunk")
    assert text == "The tool says: fog in Oslo.", text
print("ok")
