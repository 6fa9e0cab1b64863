"""litellm on Chat Completions and Responses. `python litellm_client.py URL RELEASE`."""

import sys

import litellm

litellm.telemetry = False
where = {"api_base": f"{sys.argv[1]}/v1", "api_key": "none"}
messages = [{"role": "user", "content": "Hi there"}]
made = litellm.completion(model="openai/compat", messages=messages, **where)
assert made.choices[0].message.content == "You said: Hi there"
chunks = list(litellm.completion(model="openai/compat", messages=messages, stream=True, **where))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: Hi there"
tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
asked = [{"role": "user", "content": "Use the tool"}]
first = litellm.completion(model="openai/compat", messages=asked, tools=[tool], **where).choices[0]
assert first.finish_reason == "tool_calls"
(call,) = first.message.tool_calls
answer = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
second = litellm.completion(model="openai/compat", messages=[*asked, first.message, answer], tools=[tool], **where)
assert second.choices[0].message.content == "The tool says: sun."
response = litellm.responses(model="openai/compat", input="Hello", **where)
assert response.output[0].content[0].text == "You said: Hello"
print("ok")
