"""Simon Willison's llm, its command and its library: plain, streamed, continued, tools, schema, a picture.

A server is named in `extra-openai-models.yaml`, as all that speak OpenAI are. `python llm_client.py URL RELEASE`.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = """
- model_id: indelible
  model_name: compat
  api_base: {url}/v1
  api_key_name: indelible
  supports_tools: true
  supports_schema: true
  vision: true
"""
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

home = Path(tempfile.mkdtemp())
(home / "extra-openai-models.yaml").write_text(MODELS.format(url=sys.argv[1]))
(home / "keys.json").write_text(json.dumps({"indelible": "none"}))
os.environ["LLM_USER_PATH"] = str(home)


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "llm", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


assert run("-m", "indelible", "Hi there") == "You said: Hi there"
assert run("-c", "recite").splitlines() == ["user: Hi there", "assistant: You said: Hi there", "user: recite"]
assert run("-m", "indelible", "--no-stream", "Hello") == "You said: Hello"
assert run("-m", "indelible", "-s", "Be brief.", "recite").splitlines() == ["system: Be brief.", "user: recite"]
assert json.loads(run("-m", "indelible", "--schema", "name str, people int", "Where?")) == {"name": "Oslo", "people": 1}
functions = "def weather(city: str) -> str:\n    return 'hail in ' + city\n"
assert run("-m", "indelible", "--functions", functions, "Use the tool") == "The tool says: hail in Oslo."

import llm  # noqa: E402 - it reads its folder when it is imported

model = llm.get_model("indelible")


def weather(city: str) -> str:
    """The weather in a city."""
    return f"hail in {city}"


assert model.chain("Use the tool", tools=[weather]).text() == "The tool says: hail in Oslo."
pictured = model.prompt("What is this?", attachments=[llm.Attachment(content=PIXEL, type="image/png")])
assert "".join(pictured) == "You said: What is this?"
conversation = model.conversation()
conversation.prompt("My name is Ada").text()
assert conversation.prompt("recite").text().splitlines()[0] == "user: My name is Ada"
print("ok")
