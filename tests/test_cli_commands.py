"""The commands around a chat, as people meet them: asking, chats as files, usage, completion, and a server beside.

As in test_cli.py, every test has a working directory of its own, and its chats are there in `indelible.db`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.commands import run_indelible, start_indelible
from tests.support.waiting import DEADLINE_S


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_question_with_its_context_is_answered_kept_and_asked_on_in_the_same_chat() -> None:
    done = run_indelible("ask", "roll a die")
    assert done.returncode == 0
    assert done.stdout.startswith("Let me ask `roll_die`.\n`roll_die` answered: **")
    assert done.stderr.startswith("[roll_die answered: ")
    more = json.loads(run_indelible("ask", "what is it?", "--resume", "--json", typed="a light\n").stdout)
    assert more["outcome"] == "complete"
    (chat,) = json.loads(run_indelible("chats", "--json").stdout)
    assert chat["id"] == more["chat_id"]
    assert "## You\n\na light\n\nwhat is it?\n" in run_indelible("chats", "show").stdout


def test_a_chat_is_found_exported_imported_and_counted(working_directory: Path) -> None:
    run_indelible("ask", "hello")
    assert "«greet" not in run_indelible("chats", "search", "submarine").stdout
    assert "«demo» model" in run_indelible("chats", "search", "demo").stdout
    for name, more in (("chat.json", ()), ("chat.md", ("--format", "md"))):
        assert run_indelible("chats", "export", "1", "-o", name, *more).returncode == 0
    done = run_indelible("chats", "import", "chat.json", "--database", "other.db")
    assert done.returncode == 0
    shown = run_indelible("chats", "show", done.stdout.strip(), "--database", "other.db").stdout
    assert shown == (working_directory / "chat.md").read_text()
    day, total = run_indelible("usage").stdout.splitlines()[1:]
    assert day.split()[1:3] == ["demo", "1"]
    assert total.split()[0] == "total"


def test_a_chat_beside_a_server_is_a_chat_on_it_with_the_login_that_it_needs() -> None:
    with start_indelible("serve", "--port", "0", INDELIBLE_TOKEN="hush") as server:  # noqa: S106
        url = server.read_url()
        refused = run_indelible("chat", typed="hello")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "INDELIBLE_TOKEN" in refused.stderr
        done = run_indelible("chat", "--pace", "0", typed="hello\nonce more", INDELIBLE_TOKEN="hush")  # noqa: S106
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout != ""
        assert "runs its own tools" in run_indelible("ask", "hm", "--tools", "mine:TOOLS").stderr
        assert "hello once more" in run_indelible("chats", "--server", url, INDELIBLE_TOKEN="hush").stdout  # noqa: S106


COMPLETED = {
    "indelible comp": "completion",
    "indelible chats ": "list show search export import",
    "indelible chats export --f": "--format",
    "indelible debug re": "replay",
}
ASK_BASH = """
eval "$(indelible completion bash)"
while IFS= read -r words; do
    IFS=" " read -r -a COMP_WORDS <<< "$words"
    [[ "$words" == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _indelible_completion indelible < /dev/null
    echo "${COMPREPLY[*]}"
done
"""


def test_bash_completes_commands_and_options() -> None:
    """In a real bash: the script of `indelible completion` is loaded, and asked as the Tab key would."""
    done = subprocess.run(
        ["bash", "-c", ASK_BASH],
        input="".join(f"{words}\n" for words in COMPLETED),
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.stdout.splitlines() == list(COMPLETED.values()), done.stderr
