"""Names that were given up stay given up: no identifier, file, setting, column, route or status of the old vocabulary.

docs/glossary.md has the words that are used. Only identifiers count, and their words: prose may use any word.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest
from tests.support.tables import metadata

import indelible
from indelible.client.client import RemoteService
from indelible.client.http_transport import HttpTransport
from indelible.machine.states import State, Status
from indelible.server.app import own
from indelible.server.openapi import write_document
from indelible.settings import Settings

ROOT = Path(__file__).parent.parent
RETIRED_IDENTIFIERS = frozenset(
    {
        "Office",
        "Caller",
        "Asking",
        "OwnChat",
        "Door",
        "Words",
        "NO_WORDS",
        "Description",
        "Act",
        "acts",
        "Applier",
        "carry_out",
        "transact",
        "Scribe",
        "WorkerSetup",
        "LetGo",
        "EndStopped",
        "EndAnswered",
        "Leash",
        "outlast",
        "start_grace",
        "to_its_end",
        "Promise",
        "fall_silent",
        "lose_lease",
        "fold",
        "seal",
        "Collector",
        "climb",
        "News",
        "load_news",
        "hold_alone",
        "take_at_hand",
        "weave",
        "Callouts",
        "callouts",
        "Ingest",
        "ToolBox",
        "Verdict",
        "AskClient",
        "Sink",
        "SinkRecording",
        "WireModel",
        "make_wire",
        "Backstage",
        "Assembly",
        "Follower",
        "Talker",
        "Witness",
        "Crowd",
        "Story",
        "Killer",
        "barren",
        "barren_takeovers",
        "go_on",
        "bring_results",
        "change_chat",
        "read_feed",
        "patience_s",
        "dead_after_s",
        "heartbeat_s",
        "debug_kept_s",
        "action_timeout_s",
        "journal_wait_max_bytes",
        "WAITING",
        "Stopped",
    }
)
RETIRED_WORDS = frozenset(
    {"tell", "tells", "told", "say", "says", "said", "take", "takes", "taken", "took", "hear", "hears", "heard"}
    | {"look", "looks", "looked", "telling", "saying", "taking", "hearing", "looking", "stirred", "whoever", "news"}
    | {"patience", "ingest", "climb", "climbed", "scribe", "leash", "weave", "callouts"}
)
"""Words that no identifier has in it: notify, publish, emit, claim, acquire, accept, receive and poll are clearer."""

TAKEOVER = re.compile(r"(?<![a-z])taken?_?overs?(?![a-z])", re.IGNORECASE)
"""The field's own word."""

RETIRED_FILES = frozenset(
    {
        "server/office",
        "server/door",
        "server/bodies",
        "server/stream",
        "server/routes/process",
        "worker/scribe",
        "worker/setup",
        "worker/recover",
        "leash",
        "store/whole",
        "store/port",
        "store/climb",
        "store/news",
        "store/people",
        "store/show",
        "store/read",
        "store/work",
        "store/ending",
        "store/lock",
        "fold",
        "surrogates",
        "machine/acts",
        "machine/table",
        "feed/hub",
        "feed/watch",
        "feed/source",
        "feed/weave",
        "feed/tail",
        "loop/callouts",
        "loop/ingest",
        "loop/record",
        "tools/box",
        "tools/port",
        "models/wire",
        "models/wires",
        "models/exchange",
        "models/port",
        "terminal/backstage",
        "terminal/assembly",
        "terminal/pieces",
        "terminal/follow",
        "prove/talker",
        "prove/witness",
        "prove/crowd",
        "prove/story",
        "prove/points",
        "prove/killer",
        "testing/wholeness",
        "debug/recorder",
        "debug/sink",
        "debug/secrets",
        "debug/names",
        "debug/documents",
        "debug/large",
        "debug/shorten",
        "debug/beginnings",
    }
)
RETIRED_SETTINGS = frozenset(
    {"dead_after_s", "heartbeat_s", "poll_s", "titles", "debug_kept_s", "action_timeout_s", "journal_wait_max_bytes"}
)


def list_modules() -> list[Path]:
    return sorted(path for folder in ("src", "bench") for path in (ROOT / folder).rglob("*.py"))


def list_identifiers() -> dict[str, str]:
    """Every identifier, and where it stands first."""
    found: dict[str, str] = {}
    for path in list_modules():
        if "migrations" in path.parts:  # a revision speaks the language of its day
            continue
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.NAME:
                found.setdefault(token.string, f"{path.relative_to(ROOT)}:{token.start[0]}")
    return found


def split_words(identifier: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", TAKEOVER.sub("", identifier))}


def is_retired(identifier: str) -> bool:
    return identifier.strip("_") in RETIRED_IDENTIFIERS or not RETIRED_WORDS.isdisjoint(split_words(identifier))


def test_no_retired_identifier_is_left() -> None:
    identifiers = list_identifiers()
    assert len(identifiers) > 5_000
    assert {name: where for name, where in identifiers.items() if is_retired(name)} == {}


@pytest.mark.parametrize("name", ["Office", "_carry_out", "tell", "_toldAll", "was_TAKEN", "HTTPNews", "take_overflow"])
def test_a_retired_identifier_is_known(name: str) -> None:
    assert is_retired(name)


@pytest.mark.parametrize("name", ["take_over", "stalled_takeovers", "tellurium"])
def test_other_identifiers_are_not(name: str) -> None:
    assert not is_retired(name)


def test_a_class_name_of_the_product_stands_for_one_thing() -> None:
    """The simulated provider is not part of it: it has replies and statuses of its own."""
    package = ROOT / "src" / "indelible"
    modules = defaultdict(list)
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[:2] == ("testing", "provider"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(path.relative_to(package).as_posix())
    assert len(modules) > 500
    assert {name: where for name, where in modules.items() if len(where) > 1} == {}


def test_no_retired_file_name_is_left() -> None:
    package = ROOT / "src" / "indelible"
    modules = [path.relative_to(package).with_suffix("").as_posix() for path in package.rglob("*.py")]
    assert {module for module in modules if module.split("/")[0] == "debug"} == set()
    assert {module for module in modules for retired in RETIRED_FILES if is_moved(module, retired)} == set()


def is_moved(module: str, retired: str) -> bool:
    """Whether it has this name, in the folder that had it or in one below."""
    folder, _, name = retired.rpartition("/")
    return f"/{module}".endswith(f"/{name}") and f"{module}/".startswith(f"{folder}/" if folder else "")


def test_no_retired_setting_column_or_status_is_left() -> None:
    assert RETIRED_SETTINGS.isdisjoint(Settings.model_fields)
    columns = {column.name for table in metadata.tables.values() for column in table.columns}
    assert {"said", "barren_takeovers", "when"}.isdisjoint(columns)
    assert "waiting" not in {*Status, *State}
    assert not [state.name for state in State if re.fullmatch(r"[A-Z]\d[A-Z]*", state.name)]


def test_no_retired_route_is_left() -> None:
    document = write_document(own.facts)
    paths = document["paths"]
    assert not any(path.endswith("/head") for path in paths)
    assert "patch" not in paths["/api/v1/chats/{chat_id}/queue"]
    assert "put" in paths["/api/v1/chats/{chat_id}/queue/order"]
    fields = {name for schema in document["components"]["schemas"].values() for name in schema.get("properties", ())}
    assert "if_busy" in fields
    assert "when" not in fields


def test_no_retired_method_or_argument_of_the_library_is_left() -> None:
    retired = {"go_on", "bring_results", "switch", "describe", "read_chat", "change_chat", "read_feed", "read_messages"}
    for public in (indelible.Client, indelible.Chat, HttpTransport, RemoteService):
        assert retired.isdisjoint(dir(public)), public
    assert {"work", "when"}.isdisjoint(inspect.signature(indelible.open).parameters)
    assert {"when"}.isdisjoint(inspect.signature(indelible.Chat.send).parameters)
