"""LangChain's ChatOpenAI: plain, streamed, tools, structured. `python langchain_client.py URL RELEASE`."""

import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

where = {"base_url": f"{sys.argv[1]}/v1", "api_key": "none", "model": "compat"}
chat = ChatOpenAI(**where)
assert chat.invoke("Hi there").content == "You said: Hi there"
assert "".join(chunk.content for chunk in chat.stream("Hi there")) == "You said: Hi there"


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sun in {city}"


with_tools = chat.bind_tools([weather])
asked = HumanMessage("Use the tool")
called = with_tools.invoke([asked])
(call,) = called.tool_calls
result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
assert with_tools.invoke([asked, called, result]).content == "The tool says: sun in Oslo."


class City(BaseModel):
    """A city."""

    name: str


assert chat.with_structured_output(City, method="json_schema").invoke("Where?") == City(name="Oslo")
responses = ChatOpenAI(**where, use_responses_api=True)
assert responses.invoke("Hello").text == "You said: Hello"
print("ok")
