"""openai-agents: an agent with a tool: plain, streamed, in a conversation, in a session that is kept here.

`python agents_sdk.py URL RELEASE`.
"""

import asyncio
import sys

from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"snow in {city}"


async def main(url: str) -> None:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = OpenAIResponsesModel(model="compat", openai_client=client)
    agent = Agent(name="Ada", instructions="Be brief.", model=model, tools=[weather])
    result = await Runner.run(agent, "Use the tool")
    assert result.final_output == "The tool says: snow in Oslo.", result.final_output
    streamed = Runner.run_streamed(agent, "Use the tool")
    async for _ in streamed.stream_events():
        pass
    assert streamed.final_output == "The tool says: snow in Oslo."
    own = await Runner.run(agent, "Weather here?")
    assert own.final_output == "The tool says: rain in Oslo.", own.final_output
    conversation = await client.conversations.create()
    for text in ("Use the tool", "And again the tool"):
        answer = await Runner.run(agent, text, conversation_id=conversation.id)
        assert answer.final_output == "The tool says: snow in Oslo."
    session = OpenAIConversationsSession(openai_client=client)
    for text, said in (
        ("My name is Ada", "You said: My name is Ada"),
        ("Use the tool", "The tool says: snow in Oslo."),
    ):
        assert (await Runner.run(agent, text, session=session)).final_output == said
    kept = await session.get_items()
    kinds = [item["type"] for item in kept]
    assert kinds == ["message", "message", "message", "function_call", "function_call_output", "message"], kinds
    recited = (await Runner.run(agent, "recite", session=session)).final_output.splitlines()
    assert recited[:3] == ["system: Be brief.", "user: My name is Ada", "assistant: You said: My name is Ada"], recited
    await session.clear_session()
    chained = await Runner.run(agent, "Use the tool", auto_previous_response_id=True)
    assert chained.final_output == "The tool says: snow in Oslo."


asyncio.run(main(sys.argv[1]))
print("ok")
