"""Pictures as PNG: written as HTML and SVG, photographed by the browser that the tests of the page use anyway.

`draw_bars` makes panels of grouped bars, one group for each setting and one bar for each contender, with a whisker from
the smallest to the largest round. `draw_stacks` makes bars of pieces that add up. `draw_page` photographs any HTML.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from playwright.async_api import async_playwright

COLOURS: Final = ("#a3a9b3", "#e0a526", "#1f8a63", "#3a6fc4", "#8c4a9e", "#c4574a", "#5b7f8c", "#b08968", "#6d6d6d")
_STYLE: Final = """
body { font: 15px system-ui, "DejaVu Sans", sans-serif; margin: 0; padding: 28px 32px 22px; color: #1d2330;
       background: #fff; display: inline-block }
h1 { font-size: 22px; margin: 0 0 4px } .note { color: #5c6574; margin: 0 0 14px }
.legend { display: flex; gap: 22px; margin: 0 0 10px } .key { display: flex; align-items: center; gap: 8px }
.swatch { width: 14px; height: 14px; border-radius: 3px }
.panels { display: flex; gap: 34px } .panel h2 { font-size: 15px; margin: 8px 0 0 }
.panel p { color: #5c6574; margin: 2px 0 6px; font-size: 13px }
svg text { font-size: 12px; fill: #1d2330; font-variant-numeric: tabular-nums }
svg .axis { fill: #5c6574 } svg .value { font-weight: 600; font-size: 11px }
"""
_STACK_STYLE: Final = """
.many { display: grid; grid-template-columns: repeat(5, auto); justify-content: start; gap: 4px 24px; font-size: 14px }
.row { display: flex; align-items: center; margin: 6px 0 } .name { width: 110px }
h2 { font-size: 16px; margin: 16px 0 4px }
.part { height: 34px; line-height: 34px; text-align: center; font-size: 12.5px; color: #fff; overflow: hidden }
.total { margin-left: 10px; font-weight: 600 }
"""
_STACK_WIDTH: Final = 980
_SHOWN_SHARE: Final = 0.025
_STACK_COLOURS: Final = (
    *("#3f4a5a", "#6b7787", "#98a2b0", "#2b6cb0", "#1f8a63", "#5aa469", "#8c4a9e"),
    *("#c4574a", "#d98236", "#e0a526", "#b08968", "#3a9bb5", "#7a6fd0", "#b6bcc6"),
)
_HEIGHT: Final = 250
_TOP: Final = 22
_LEFT: Final = 54
_BAR: Final = 34
_GAP: Final = 5
_BETWEEN: Final = 26


class Bar(NamedTuple):
    """A value, and the range in which it was found."""

    value: float
    lowest: float
    highest: float


class Panel(NamedTuple):
    """A chart of its own, with a scale of its own: bars by group, then by contender. `limit` cuts longer bars off."""

    title: str
    note: str
    groups: Mapping[str, Mapping[str, Bar]]
    limit: float | None = None


async def draw_bars(title: str, note: str, panels: Sequence[Panel], path: Path) -> None:
    """Panels beside each other; a contender has the same colour in all of them."""
    names = list(dict.fromkeys(name for panel in panels for group in panel.groups.values() for name in group))
    colours = dict(zip(names, COLOURS, strict=False))
    legend = "".join(
        f"<div class=key><div class=swatch style='background:{colour}'></div>{html.escape(name)}</div>"
        for name, colour in colours.items()
    )
    shown = "".join(_draw_panel(panel, colours) for panel in panels if panel.groups)
    await draw_page(
        f"<h1>{html.escape(title)}</h1><p class=note>{html.escape(note)}</p>"
        f"<div class=legend>{legend}</div><div class=panels>{shown}</div>",
        path,
    )


async def draw_stacks(
    title: str, note: str, groups: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path
) -> None:
    """A group for each setting, with a scale of its own; in it a bar for each contender, in pieces."""
    pieces = list(dict.fromkeys(piece for group in groups.values() for bar in group.values() for piece in bar))
    colours = {piece: _STACK_COLOURS[at % len(_STACK_COLOURS)] for at, piece in enumerate(pieces)}
    legend = "".join(
        f"<div class=key><div class=swatch style='background:{colour}'></div>{html.escape(piece)}</div>"
        for piece, colour in colours.items()
    )
    drawn: list[str] = []
    for name, group in groups.items():
        longest = max(sum(bar.values()) for bar in group.values())
        drawn.append(f"<h2>{html.escape(name)}</h2>")
        for contender, bar in group.items():
            parts = "".join(
                f"<div class=part style='width:{_STACK_WIDTH * value / longest:.1f}px;background:{colours[piece]}'>"
                f"{f'{value:,.0f}' if value / longest > _SHOWN_SHARE else ''}</div>"
                for piece, value in bar.items()
            )
            total = f"<div class=total>{sum(bar.values()):,.0f}</div>"
            drawn.append(f"<div class=row><div class=name>{html.escape(contender)}</div>{parts}{total}</div>")
    body = f"<h1>{html.escape(title)}</h1><p class=note>{html.escape(note)}</p><div class='legend many'>{legend}</div>"
    await draw_page(body + "".join(drawn), path, style=_STACK_STYLE)


async def draw_page(body: str, path: Path, *, style: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1800, "height": 400}, device_scale_factor=1.5)
        await page.set_content(f"<style>{_STYLE}{style}</style>{body}")
        await page.locator("body").screenshot(path=path)
        await browser.close()


def _draw_panel(panel: Panel, colours: Mapping[str, str]) -> str:
    bars = [bar for group in panel.groups.values() for bar in group.values()]
    highest = max([bar.value for bar in bars], default=0) or 1.0
    if panel.limit is not None:
        highest = min(highest, panel.limit)
    step = _choose_step(highest)
    top = math.ceil(highest * 1.04 / step) * step
    per_px = top / _HEIGHT
    widths = [len(group) * (_BAR + _GAP) - _GAP for group in panel.groups.values()]
    width = max(_LEFT + sum(widths) + _BETWEEN * (len(widths) + 1), 300)
    drawn = [_draw_grid(top, step, width)]
    x = float(_LEFT + _BETWEEN)
    for (name, group), group_width in zip(panel.groups.items(), widths, strict=True):
        middle = x + group_width / 2
        drawn.append(
            f"<text class=axis x={middle} y={_TOP + _HEIGHT + 20} text-anchor=middle>{html.escape(name)}</text>"
        )
        for contender, bar in group.items():
            drawn.append(_draw_bar(bar, x, per_px, top, colours[contender]))
            x += _BAR + _GAP
        x += _BETWEEN - _GAP
    return (
        f"<div class=panel><h2>{html.escape(panel.title)}</h2><p>{html.escape(panel.note)}</p>"
        f"<svg width={width} height={_TOP + _HEIGHT + 30}>{''.join(drawn)}</svg></div>"
    )


def _draw_grid(top: float, step: float, width: float) -> str:
    lines: list[str] = []
    for number in range(round(top / step) + 1):
        y = _TOP + _HEIGHT - number * step / top * _HEIGHT
        lines.append(
            f"<line x1={_LEFT} x2={width} y1={y} y2={y} stroke='{'#9aa2b1' if not number else '#e6e9ee'}' />"
            f"<text class=axis x={_LEFT - 8} y={y + 4} text-anchor=end>{number * step:,.10g}</text>"
        )
    return "".join(lines)


def _draw_bar(bar: Bar, x: float, per_px: float, top: float, colour: str) -> str:
    bottom = _TOP + _HEIGHT
    is_cut = bar.value > top
    height = max(min(bar.value, top) / per_px, 1)
    y = bottom - height
    middle = x + _BAR / 2
    drawn = [f"<rect x={x} y={y} width={_BAR} height={height} rx=3 fill='{colour}' />"]
    ends = [bottom - min(end, top) / per_px for end in (bar.lowest, bar.highest)]
    if not is_cut and ends[0] - ends[1] > 2:
        drawn.append(
            f"<line x1={middle} x2={middle} y1={ends[0]} y2={ends[1]} stroke='#1d2330' stroke-width=1.2 opacity=.55 />"
        )
    label_y = min(y, *ends) - 6
    arrow = "↑ " if is_cut else ""
    drawn.append(f"<text class=value x={middle} y={label_y} text-anchor=middle>{arrow}{_format(bar.value)}</text>")
    return "".join(drawn)


def _format(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def _choose_step(highest: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are four to eight lines."""
    power = 10.0 ** math.floor(math.log10(highest / 4))
    return next(factor * power for factor in (1, 2, 5, 10) if highest / (factor * power) <= 6)
