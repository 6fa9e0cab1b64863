"""The commands around a chat, as people meet them: asking, chats as files, usage, completion, and a server beside.

As in test_cli.py, every test has a working directory of its own, and its chats are there in `indelible.db`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.support.commands import INDELIBLE, run_indelible, start_indelible
from tests.support.waiting import DEADLINE_S


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_question_and_its_context_are_a_chat_that_is_found_exported_imported_and_counted() -> None:
    done = run_indelible("ask", "roll a die", typed="a light\n")
    assert (done.returncode, done.stdout[:23]) == (0, "Let me ask `roll_die`.\n")
    assert done.stderr.startswith("[roll_die answered: ")
    (found,) = json.loads(run_indelible("chats", "search", "ligh", "--json").stdout)
    assert found["match"]["snippet"]["text"].startswith("a light")
    assert run_indelible("chats", "export", "1", "-o", "chat.json").returncode == 0
    assert run_indelible("chats", "export", "1", "--files", "-o", "chat.zip").returncode == 0
    imported, _ = run_indelible("chats", "import", "chat.zip", "chat.json").stdout.split()
    shown = run_indelible("chats", "show", imported).stdout
    assert "## You\n\na light\n\nroll a die\n\n## Assistant (demo)\n" in shown
    assert json.loads(run_indelible("usage", "--json").stdout)["total"]["turns"] == 1


def test_an_import_names_the_file_that_it_refuses_and_keeps_those_before_it(working_directory: Path) -> None:
    run_indelible("ask", "hello")
    run_indelible("chats", "export", "-o", "chat.json")
    run_indelible("chats", "export", "--files", "-o", "chat.zip")
    (working_directory / "notes.json").write_text("These are notes.")
    (working_directory / "half.zip").write_bytes((working_directory / "chat.zip").read_bytes()[:200])
    for refused, reason in [("notes.json", "Not an exported chat"), ("half.zip", "not an archive of a chat")]:
        done = run_indelible("chats", "import", "chat.json", refused, "chat.json")
        assert (done.returncode, done.stdout.count("\n"), done.stderr.count("\n")) == (1, 1, 1)
        assert refused in done.stderr
        assert reason in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "errors"),
    [
        (["chats", "import", "-"], 2, "indelible: Can't read -: standard input is closed.\n"),
        (["chat"], 0, ""),
    ],
)
def test_a_closed_standard_input_is_an_empty_one(arguments: list[str], status: int, errors: str) -> None:
    command = ["/bin/sh", "-c", f"exec {shlex.join([*INDELIBLE, *arguments])} <&-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", errors)


def test_the_next_step_after_adding_a_user_can_be_pasted_into_a_shell() -> None:
    run_indelible("migrate")
    assert run_indelible("user", "add", "Ada Lovelace").stdout.endswith("indelible token create 'Ada Lovelace'\n")


def test_a_chat_beside_a_server_is_a_chat_on_it_with_the_login_that_it_needs() -> None:
    with start_indelible("serve", "--port", "0", INDELIBLE_TOKEN="hush") as server:  # noqa: S106
        server.read_url()
        refused = run_indelible("ask", "hello")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "INDELIBLE_TOKEN" in refused.stderr
        done = run_indelible("chat", typed="hello\nonce more", INDELIBLE_TOKEN="hush")  # noqa: S106
        assert (done.returncode, done.stderr) == (0, "")
        assert "## You\n\nhello\nonce more\n" in run_indelible("chats", "show").stdout


def log_in_by(link: str) -> int:
    """The status of what the page does with the link's token."""
    place, _, token = link.partition("/login#token=")
    body, headers = json.dumps({"token": token}).encode(), {"Content-Type": "application/json", "Origin": place}
    request = urllib.request.Request(f"{place}/api/v1/session", body, headers)  # noqa: S310  (our own server)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_link_on_demand_logs_the_first_admin_in_once_at_the_server_that_runs() -> None:
    with start_indelible("serve", "--port", "0", INDELIBLE_TOKEN="hush") as server:  # noqa: S106
        url = server.read_url()
        links = [run_indelible("login-link") for _ in range(2)]
        assert [(done.returncode, done.stderr) for done in links] == [(0, "")] * 2
        first, second = (done.stdout.removesuffix("\n") for done in links)
        assert first.startswith(f"{url}/login#token=idt_")
        assert [log_in_by(link) for link in (first, first, second)] == [200, 401, 200]
    elsewhere = run_indelible("login-link", "--url", "https://chats.example/chat/").stdout
    assert elsewhere.startswith("https://chats.example/chat/login#token=idt_")
    settled = run_indelible("login-link", INDELIBLE_HOST="0.0.0.0", INDELIBLE_BASE_PATH="chat").stdout  # noqa: S104
    assert settled.startswith("http://127.0.0.1:8000/chat/login#token=idt_")
    for wrong in ("chats.example", "https://chats.example/?x=1", "https://a b", "https://chats.example:99999"):
        assert run_indelible("login-link", "--url", wrong).returncode == 2
    assert "--url" in run_indelible("login-link", INDELIBLE_PORT="0").stderr


def test_the_first_admin_is_not_disabled_or_demoted_by_a_command_that_could_not_hold() -> None:
    run_indelible("migrate")
    run_indelible("user", "add", "local", "--role", "admin")
    for command in (("disable", "local"), ("role", "local", "user")):
        done = run_indelible("user", *command)
        assert (done.returncode, done.stdout) == (1, "")
        assert "can't be disabled or demoted" in done.stderr


COMPLETED = {
    "indelible comp": "completion",
    "indelible chats ": "list show search export import",
    "indelible chats export --f": "--format --files",
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
        ["/bin/bash", "-c", ASK_BASH],
        input="".join(f"{words}\n" for words in COMPLETED),
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.stdout.splitlines() == list(COMPLETED.values()), done.stderr


@pytest.mark.parametrize("database", ["chats.db", "sqlite:///chats.db"])
def test_users_and_tokens_are_made_in_a_database_that_is_named_by_its_path_or_by_its_url(database: str) -> None:
    run_indelible("migrate", "--database", database)
    added = run_indelible("user", "add", "ada", "--database", database)
    assert (added.returncode, added.stderr) == (0, "")
    made = run_indelible("token", "create", "ada", "--label", "backup", "--database", database)
    assert (made.returncode, made.stderr) == (0, "")
    assert run_indelible("token", "list", "ada", "--database", database).stdout.endswith("  backup\n")
    odd = "a\x1b[2J\u202eb\nidl_forged"
    made = run_indelible("token", "create", "ada", "--label", odd, "--database", database)
    assert (made.returncode, made.stderr) == (0, "")
    newest, other = run_indelible("token", "list", "ada", "--database", database).stdout.splitlines()
    assert newest.endswith("  a\ufffd[2J\ufffdb idl_forged")
    assert other.endswith("  backup")


def test_lists_of_users_and_tokens_say_what_a_time_is() -> None:
    run_indelible("migrate")
    run_indelible("user", "add", "ada")
    run_indelible("token", "create", "ada", "--expires", "30d")
    tokens, users = run_indelible("token", "list", "ada").stdout, run_indelible("user", "list").stdout
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    assert re.search(rf"  never used  until {time}$", tokens, re.MULTILINE)
    assert re.search(rf"^ada +user +active  since {time}$", users, re.MULTILINE)


@pytest.mark.parametrize(
    "command", [("user", "list"), ("token", "list", "ada"), ("login-link",), ("chats",), ("debug", "list")]
)
def test_a_command_that_needs_a_database_never_creates_one(command: tuple[str, ...], working_directory: Path) -> None:
    done = run_indelible(*command, "--database", "sqlite:///chast.db")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "indelible: Can't find the database chast.db. "
        "Start 'indelible serve' first, or choose another with --database.\n"
    )
    assert list(working_directory.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--label", "x" * 201), "The label is too long (limit 200 characters)."),
        (("--scope", "reed"), "A token needs one or more of the scopes read, write and admin, each once."),
    ],
)
def test_a_token_of_the_command_obeys_the_rules_of_the_servers_tokens(options: tuple[str, ...], message: str) -> None:
    run_indelible("migrate")
    run_indelible("user", "add", "ada")
    done = run_indelible("token", "create", "ada", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert run_indelible("token", "list", "ada").stdout == ""


@pytest.mark.parametrize("pace", ["inf", "nan"])
def test_a_pace_is_a_number_of_seconds(pace: str) -> None:
    done = run_indelible("ask", "hello", "--pace", pace)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'--pace'" in done.stderr


@pytest.mark.parametrize("words", ["", "  "])
def test_a_search_for_nothing_finds_no_chat(words: str) -> None:
    run_indelible("ask", "hello")
    done = run_indelible("chats", "search", words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "There are no words to search for." in done.stderr


def test_an_import_of_a_missing_file_imports_nothing_and_creates_no_database(working_directory: Path) -> None:
    (working_directory / "chat.json").write_text("{}")
    done = run_indelible("chats", "import", "chat.json", "nosuch.json", "--database", "new.db")
    message = "indelible: Can't read nosuch.json: No such file or directory.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert [path.name for path in working_directory.iterdir()] == ["chat.json"]


@pytest.mark.parametrize(
    "command",
    [
        ("user", "disable", "nobody"),
        ("user", "role", "nobody", "admin"),
        ("token", "create", "nobody"),
        ("token", "list", "nobody"),
        ("usage", "--user", "nobody"),
    ],
    ids=" ".join,
)
def test_an_unknown_user_is_named_with_the_same_status_by_every_command(command: tuple[str, ...]) -> None:
    run_indelible("migrate")
    done = run_indelible(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("indelible: There is no user named nobody.")


@pytest.mark.parametrize(
    ("variable", "name"), [("INDELIBLE_MODEL", "nosuch:x"), ("INDELIBLE_MODELS", "openai:gpt-5.1,nosuch:x")]
)
@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("serve", "--port", "0", "--no-worker"), ("worker",)])
def test_an_unknown_model_is_reported_at_startup(
    command: tuple[str, ...], variable: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, name)
    done = run_indelible(*command)
    assert (done.returncode, done.stdout) == (1 if "--no-worker" in command else 2, "")
    assert "Unknown model 'nosuch:x'" in done.stderr


@pytest.mark.parametrize("host", ["nosuch.invalid", "no..such"])
def test_a_host_that_does_not_exist_is_not_called_reachable(host: str) -> None:
    done = run_indelible("serve", "--host", host)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"indelible: Can't listen on {host}:8000: ")
    assert done.stderr.endswith(". Choose another --host.\n")


def test_an_output_whose_encoding_lacks_a_letter_gets_its_number() -> None:
    """In a new interpreter, which chooses the encoding at its start."""
    run_indelible("ask", "你好")
    done = subprocess.run(
        [*INDELIBLE, "chats"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("  \\u4f60\\u597d\n")
