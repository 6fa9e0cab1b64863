"""The official SDK, sync: everything that docs/openai.md promises. `python openai_sync.py URL RELEASE`."""

import json
import sys
from pathlib import Path

from openai import BadRequestError, ConflictError, NotFoundError, OpenAI
from pydantic import BaseModel

url, release = sys.argv[1], Path(sys.argv[2])
client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


def text_of(events):
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


# create, retrieve, input items
made = client.responses.create(model="compat", input="Hello", metadata={"a": "b"})
assert made.output_text == "You said: Hello", made
assert made.usage.total_tokens == 12
assert client.responses.retrieve(made.id) == made
assert client.responses.input_items.list(made.id).data[0].content[0].text == "Hello"

# stream, and resume after every event
live = list(client.responses.create(input="One two three", stream=True, background=True))
assert text_of(live) == "You said: One two three"
response_id = live[0].response.id
for number in range(-1, len(live)):
    assert list(client.responses.retrieve(response_id, stream=True, starting_after=number)) == live[number + 1 :]
with client.responses.stream(response_id=response_id, starting_after=2) as resumed:
    assert [event.sequence_number for event in resumed] == list(range(3, len(live)))
    assert resumed.get_final_response().output_text == "You said: One two three"
with client.responses.stream(model="compat", input="Fresh") as fresh:
    assert fresh.until_done().get_final_response().output_text == "You said: Fresh"

# background, poll, cancel with the partial text
running = client.responses.create(input="hold on", background=True)
stream = client.responses.retrieve(running.id, stream=True)
seen = []
for event in stream:
    seen.append(event)
    if text_of(seen).endswith("word9"):
        cancelled = client.responses.cancel(running.id)
        assert cancelled.status == "cancelled"
assert seen[-1].type == "response.incomplete"
assert seen[-1].response.status == "cancelled"
assert seen[-1].response.output_text == text_of(seen)
assert client.responses.retrieve(running.id).output_text == text_of(seen)
polled = client.responses.create(input="Poll me", background=True)
while polled.status in ("queued", "in_progress"):
    polled = client.responses.retrieve(polled.id)
assert polled.output_text == "You said: Poll me"

# function calling over two requests
first = client.responses.create(input="Use the tool", tools=[TOOL])
(call,) = first.output
assert (call.type, json.loads(call.arguments)) == ("function_call", {"city": "Oslo"})
output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
second = client.responses.create(input=[output], previous_response_id=first.id, tools=[TOOL])
assert second.output_text == "The tool says: rain.", second
own = client.responses.create(input="Weather here?")
assert [item.type for item in own.output] == ["mcp_call", "message"]
assert own.output_text == "The tool says: rain in Oslo."


# structured output
class City(BaseModel):
    name: str
    people: int


assert client.responses.parse(input="Where?", text_format=City).output_parsed == City(name="Oslo", people=1)

# conversations, forks
conversation = client.conversations.create(metadata={"topic": "x"})
client.responses.create(input="First", conversation=conversation.id)
client.responses.create(input="Second", conversation=conversation.id)
items = list(client.conversations.items.list(conversation.id, order="asc"))
assert [item.role for item in items] == ["user", "assistant", "user", "assistant"]
assert client.conversations.update(conversation.id, metadata={"topic": "y"}).metadata == {"topic": "y"}
client.conversations.delete(conversation.id)
old = client.responses.create(input="Root")
for text in ("Left", "Right"):
    assert client.responses.create(input=text, previous_response_id=old.id).output_text == f"You said: {text}"

# errors
for error, call_it in [
    (NotFoundError, lambda: client.responses.retrieve("resp_x")),
    (NotFoundError, lambda: client.conversations.retrieve(conversation.id)),
    (BadRequestError, lambda: client.responses.cancel(made.id)),
    (NotFoundError, lambda: client.responses.create(input="x", model="none such")),
    (ConflictError, lambda: client.responses.delete(old.id)),
]:
    try:
        call_it()
    except error:
        continue
    raise AssertionError(error)

# chat completions
messages = [{"role": "user", "content": "Hi there"}]
assert (
    client.chat.completions.create(model="compat", messages=messages).choices[0].message.content == "You said: Hi there"
)
chunks = list(
    client.chat.completions.create(
        model="compat", messages=messages, stream=True, stream_options={"include_usage": True}
    )
)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "You said: Hi there"
assert chunks[-1].usage.total_tokens == 12
assert "compat" in [model.id for model in client.models.list()]
print("ok")
