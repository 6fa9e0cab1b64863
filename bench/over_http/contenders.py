"""Starting what is compared, each as the process that its users would start, and counting the CPU of its whole tree."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
INDELIBLE: Final = (sys.executable, "-m", "indelible")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Contender(NamedTuple):
    """A server that runs. `beside` are processes that it keeps busy and that are not its children (a database)."""

    url: str
    pid: int
    is_indelible: bool
    beside: tuple[int, ...] = ()


@contextmanager
def start_provider(tokens: int, rate: float) -> Iterator[int]:
    with _start(sys.executable, str(HERE / "provider.py"), str(tokens), str(rate)) as (_, first_line):
        yield int(first_line)


def change_reply(provider_port: int, tokens: int, rate: float) -> None:
    """From now on the provider says so many tokens, so many per second."""
    connection = http.client.HTTPConnection("127.0.0.1", provider_port)
    connection.request("POST", f"/reply/{tokens}/{rate}")
    if connection.getresponse().status != 204:
        raise RuntimeError("The provider does not obey.")
    connection.close()


@contextmanager
def start_raw(provider_port: int) -> Iterator[Contender]:
    with _start(sys.executable, str(HERE / "raw.py"), str(provider_port)) as (pid, url):
        yield Contender(url, pid, is_indelible=False)


@contextmanager
def start_limit(provider_port: int) -> Iterator[Contender]:
    with _start(sys.executable, str(HERE / "limit.py"), str(provider_port)) as (pid, url):
        yield Contender(url, pid, is_indelible=False)


@contextmanager
def start_plain(provider_port: int, directory: Path) -> Iterator[Contender]:
    path = str(directory / "plain.db")
    with _start(sys.executable, str(HERE / "plain.py"), str(provider_port), path) as (pid, url):
        yield Contender(url, pid, is_indelible=False)


@contextmanager
def start_indelible(
    provider_port: int,
    database: str,
    directory: Path,
    *options: str,
    beside: tuple[int, ...] = (),
    program: tuple[str, ...] = INDELIBLE,
    redis_url: str = "",
) -> Iterator[Contender]:
    """`indelible serve`, as it comes, but for the model and titles (a title would be a second call of the model)."""
    command = [*program, "serve", "--port", "0", "--database", database, *options]
    environment = {**_make_environment(provider_port), "INDELIBLE_REDIS_URL": redis_url}
    with _start(*command, environment=environment, directory=directory) as (pid, line):
        url = line[line.index("http://") :].split()[0].rstrip("/.")
        yield Contender(url, pid, is_indelible=True, beside=beside)


@contextmanager
def start_worker(provider_port: int, database: str, directory: Path, *, redis_url: str = "") -> Iterator[int]:
    """`indelible worker`. Gives its process id."""
    command = [*INDELIBLE, "worker", "--database", database]
    environment = {**_make_environment(provider_port), "INDELIBLE_REDIS_URL": redis_url}
    with _start(*command, environment=environment, directory=directory) as (pid, _):
        yield pid


def find_postmaster(address: str) -> int:
    """The process of a PostgreSQL of ours (bench/databases.py), whose children are all its others."""
    return int((Path(address.partition("host=")[2]) / "postmaster.pid").read_text().split()[0])


def _make_environment(provider_port: int) -> dict[str, str]:
    return {
        "OPENAI_API_KEY": "sk-bench",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{provider_port}/v1",
        "INDELIBLE_MODEL": "openai-chat:bench",
        "INDELIBLE_AUTO_TITLES": "false",
        "PYTHONPATH": str(ROOT),
    }


@contextmanager
def _start(
    *command: str, environment: dict[str, str] | None = None, directory: Path | None = None
) -> Iterator[tuple[int, str]]:
    """A process, and the line in which it says that it is ready, or where it is."""
    inherited = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**inherited, **(environment or {})}, cwd=directory
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        while line and "ready" not in line and "http://" not in line and not line.strip().isdigit():
            line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(command[1:])} did not start.")
        yield process.pid, line.strip()
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def count_cpu_s(*pids: int) -> float:
    """What these processes and their children have used until now."""
    return sum(_read_cpu_s(pid) for pid in _find_tree(pids))


def count_memory_bytes(pid: int) -> int:
    """Of the process and its children. One that ends meanwhile counts as nothing."""
    return sum(_read_memory_bytes(each) for each in _find_tree([pid]))


def _read_memory_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except FileNotFoundError:
        return 0


def _find_tree(pids: Iterator[int] | list[int] | tuple[int, ...]) -> list[int]:
    found: list[int] = []
    todo = list(pids)
    while todo:
        pid = todo.pop()
        found.append(pid)
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            todo += [int(child) for child in children.read_text().split()]
    return found


def _read_cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / _TICKS
