"""A bar chart as PNG: written as HTML, photographed by the browser that the tests of the page use anyway."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from playwright.async_api import async_playwright

_COLOURS: Final = ("#8a8a8a", "#c9a227", "#2f7d5b", "#3b6fb6", "#8c4a9e")
_STYLE: Final = """
body { font: 15px system-ui, sans-serif; margin: 24px; width: 860px; color: #222; background: #fff }
h1 { font-size: 18px } h2 { font-size: 14px; margin: 18px 0 6px; font-weight: 600 }
.row { display: flex; align-items: center; margin: 3px 0 } .name { width: 190px }
.bar { height: 18px; border-radius: 2px } .value { margin-left: 8px; font-variant-numeric: tabular-nums }
"""


async def draw(
    figures: Mapping[str, Mapping[str, float]], path: Path, *, title: str = "CPU of the server per token, µs"
) -> None:
    """One group of bars for each setting, one bar for each contender; shorter is better."""
    longest = max((value for group in figures.values() for value in group.values()), default=1.0)
    page = [f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>"]
    for name, group in figures.items():
        page.append(f"<h2>{html.escape(name)}</h2>")
        for (contender, value), colour in zip(group.items(), _COLOURS, strict=False):
            bar = f"<div class=bar style='width:{520 * value / longest:.0f}px;background:{colour}'></div>"
            page.append(
                f"<div class=row><div class=name>{html.escape(contender)}</div>{bar}"
                f"<div class=value>{value:,.0f}</div></div>"
            )
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        shown = await browser.new_page(viewport={"width": 908, "height": 200})
        await shown.set_content("".join(page))
        await shown.screenshot(path=path, full_page=True)
        await browser.close()
