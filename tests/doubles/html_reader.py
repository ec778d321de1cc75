# SPDX-License-Identifier: MIT
"""Reading our HTML pages in tests: a strict parser, and a browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

VOID = {"meta", "br"}
HOSTILE = (
    '"><script src="http://evil.example/x.js">alert(1)</script><img src=x onerror=y> {{ 7*7 }} $\\alpha & <!-- -->'
)


class Reader(HTMLParser):
    """Tags, attributes and text of a page; a tag closed out of order is an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def dumped_dom(path: Path, *options: str) -> str:
    """The page as Chromium has understood it. Skips the test where there is no Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no chromium on PATH")
    profile = path.parent / "profile"
    argv = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={profile}",
        *options,
        "--dump-dom",
    ]
    done = subprocess.run([*argv, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


_LOOK = """<script>parent.postMessage(JSON.stringify({
  name: "NAME", wide: document.documentElement.scrollWidth, window: document.documentElement.clientWidth,
  fetched: performance.getEntriesByType("resource").filter(e => !e.name.startsWith("data:")).length,
  svgs: document.querySelectorAll("svg").length, scripts: document.querySelectorAll("script").length,
  styled: getComputedStyle(document.querySelector("main")).maxWidth !== "none", text: document.body.innerText,
}), "*")</script>"""
_COLLECT = """<script>addEventListener("message", e => {
  const told = document.createElement("p"); told.textContent = e.data; document.body.append(told); });</script>"""


def framed(folder: Path, pages: Mapping[str, tuple[str, int]]) -> dict[str, dict[str, Any]]:
    """What a browser has made of each page in a frame of the width given, px; one start for all of them.

    Only a script can tell: the copies permit ours, and keep the rest of what the page forbids.
    """
    frames = []
    for name, (html, width) in pages.items():
        permitted = html.replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
        assert permitted != html
        (folder / f"{name}.html").write_text(
            permitted.replace("</body>", _LOOK.replace("NAME", name) + "</body>"), encoding="utf-8"
        )
        frames.append(f'<iframe src="{name}.html" width="{width}" height="900" style="border: 0"></iframe>')
    outer = folder / "frames.html"
    outer.write_text(f"<!DOCTYPE html><html><body>{_COLLECT}{''.join(frames)}</body></html>", encoding="utf-8")
    dom = dumped_dom(outer, "--window-size=1400,900", "--virtual-time-budget=20000")
    told = [json.loads(unescape(text)) for text in re.findall(r"<p>(.*?)</p>", dom, re.DOTALL)]
    assert {one["name"] for one in told} == set(pages)
    return {one["name"]: one for one in told}
