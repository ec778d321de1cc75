"""Reading our HTML pages in tests: a strict parser, and a browser where there is one."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

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
