"""The model's table, and a picture of where each design breaks (`python -m bench model`)."""

from __future__ import annotations

import html
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from bench.chart import draw_page
from bench.options import OUT, write_json
from bench.scale.model import Design, Load, Use, compute_use, find_chats, find_split

BASE_CHATS: Final = 200
"""What one machine of two cores carries together with its load and provider: 10,000 tokens per second."""

MULTIPLES: Final = (1, 10, 100, 1_000)
DESIGNS: Final = {
    "One row per chat and flush, LISTEN/NOTIFY": Design(is_flush_adaptive=False),
    "Today: adaptive flush, LISTEN/NOTIFY": Design(),
    "Today, with the journal partitioned by chat": Design(is_journal_partitioned=True),
    "Adaptive flush, rows by Redis": Design(fan_out="bus"),
}
_SPLIT: Final = {
    "Today, split by chat": Design(),
    "Rows by Redis, split by chat": Design(fan_out="bus"),
}
_STYLE: Final = """
table { border-collapse: separate; border-spacing: 6px; margin-left: -6px } th { font-weight: 600; padding: 4px 10px }
th.design { text-align: left; width: 300px; font-weight: 500 }
td { width: 190px; padding: 10px 12px; border-radius: 6px }
td b { display: block; font-size: 16px } td small { color: #38404e; font-size: 12.5px }
.holds { background: #d5eddf } .tight { background: #f6ebc6 } .breaks { background: #f5d3cc }
"""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One design at one load; `design.databases` is above 1 only where it was split to hold."""

    name: str
    multiple: int
    chats: int
    design: Design
    use: Use


def list_cells() -> list[Cell]:
    cells: list[Cell] = []
    for multiple in MULTIPLES:
        load = Load(chats=BASE_CHATS * multiple)
        for name, design in DESIGNS.items():
            cells.append(_make_cell(name, multiple, load, design))
        for name, design in _SPLIT.items():
            split = msgspec.structs.replace(design, databases=find_split(load, design))
            cells.append(_make_cell(name, multiple, load, split))
    return cells


async def measure() -> None:
    console = Console(width=170)
    cells = list_cells()
    console.print(_tabulate(cells))
    for name, design in DESIGNS.items():
        console.print(f"One PostgreSQL of this size, {name}: {find_chats(design):,} chats at 50 tokens/s.")
    write_json("model", cells)
    await draw_page(_draw(cells), OUT / "model.png", style=_STYLE)
    console.print(f"Written: {OUT / 'model.json'} and {OUT / 'model.png'}.")


def _make_cell(name: str, multiple: int, load: Load, design: Design) -> Cell:
    return Cell(name=name, multiple=multiple, chats=int(load.chats), design=design, use=compute_use(load, design))


def _tabulate(cells: list[Cell]) -> Table:
    table = Table("", "design", title="Where it breaks: chats at 50 tokens/s, replies of 250 tokens")
    columns = (
        "databases",
        "workers",
        "servers",
        "connections",
        "commits/s",
        "rows/s",
        "WAL MB/s",
        "reads/s",
        "notifications/s",
    )
    for column in (*columns, "first to break"):
        table.add_column(column, justify="right")
    for cell in cells:
        use = cell.use
        table.add_row(
            f"{cell.multiple:,} × ({cell.chats:,} chats)" if cell.name == next(iter(DESIGNS)) else "",
            cell.name,
            f"{cell.design.databases:,}",
            f"{use.workers:,}",
            f"{use.servers:,}",
            f"{use.connections:,}",
            f"{use.commits_per_s:,.0f}",
            f"{use.rows_per_s:,.0f}",
            f"{use.wal_bytes_per_s / 1e6:,.1f}",
            f"{use.reads_per_s:,.0f}",
            f"{use.notifications_per_s:,.0f}",
            _judge(use),
            end_section=cell.name == list(_SPLIT)[-1],
        )
    return table


def _judge(use: Use) -> str:
    share = use.shares[use.fullest]
    return f"{use.fullest} {share:,.1f} ×" if share > 1 else f"holds ({use.fullest} {share:.0%})"


def _draw(cells: list[Cell]) -> str:
    heads = "".join(f"<th>{each:,} ×<br>{each * BASE_CHATS:,} chats</th>" for each in MULTIPLES)
    rows: list[str] = []
    for name in (*DESIGNS, *_SPLIT):
        own = [cell for cell in cells if cell.name == name]
        rows.append(f"<tr><th class=design>{html.escape(name)}</th>{''.join(map(_draw_cell, own))}</tr>")
    return (
        "<h1>Where it breaks</h1><p class=note>Computed, with costs measured or estimated on a machine of two cores."
        " Every chat streams 50 tokens/s all the time; 1 × is 10,000 tokens/s. A database has two cores as well.</p>"
        f"<table><tr><th></th>{heads}</tr>{''.join(rows)}</table>"
    )


def _draw_cell(cell: Cell) -> str:
    use = cell.use
    share = use.shares[use.fullest]
    kind = "breaks" if share > 1 else "tight" if share > 0.7 and cell.design.databases == 1 else "holds"
    verdict = f"{share:,.{0 if share > 20 else 1}f} × capacity" if share > 1 else "holds"
    what = use.fullest if share > 1 else f"{use.fullest} {share:.0%}"
    if cell.design.databases > 1:
        verdict, what = f"{cell.design.databases:,} databases", "hold"
    count = f"{_count(use.workers, 'worker')}, {_count(use.servers, 'server')}" if use.servers else "one process"
    return f"<td class={kind}><b>{verdict}</b><small>{html.escape(what)}<br>{count}</small></td>"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
