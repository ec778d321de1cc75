# SPDX-License-Identifier: MIT
"""What the pages for contributors name is there: files, links, checkers, the version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_pal import __version__
from slurm_pal.submit.script import scan

from ...doubles.page_commands import pages

ROOT = Path(__file__).parents[3]
README_WORDS = 600
SOURCE = re.compile(
    r"(?<![\w/.])((?:tests|etc|slurm_pal|cli|profiling|spank|packaging)/[\w./-]*\w\.(?:py|sh|toml|lua|cu|c|h))\b"
)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_lead_to_files(name: str) -> None:
    """Sphinx looks after those between the pages of docs/."""
    assert not [link for link in LINK.findall((ROOT / name).read_text()) if not (ROOT / link).exists()]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS


def test_files_and_targets_named_on_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    files, made = [], []
    for page in pages():
        text = page.read_text()
        files += [(page.name, name) for name in SOURCE.findall(text) if "NAME" not in name]
        made += [(page.name, name) for name in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, re.MULTILINE)]
    assert len(files) > 100 and len(made) > 20
    assert not [(page, name) for page, name in files if not (ROOT / name).exists()]
    assert not [(page, name) for page, name in made if name not in targets]


def test_man_pages_begin_with_a_synopsis() -> None:
    """After NAME, which Sphinx writes."""
    named = re.findall(r'^    \("([a-z/-]+)", "', (ROOT / "docs" / "conf.py").read_text(), re.MULTILINE)
    assert len(named) == 6
    for name in named:
        headings = re.findall(r"^## (.+)$", (ROOT / "docs" / f"{name}.md").read_text(), re.MULTILINE)
        assert headings[0] == "Synopsis", name


def test_scripts_on_the_pages_are_read_as_they_stand() -> None:
    """A formatter may put a blank after the # of a directive; palsub and sbatch then ignore the line."""
    scripts = [text for page in pages() for text in re.findall(r"```\w*\n(#!.*?)```", page.read_text(), re.DOTALL)]
    wanted = [text for text in scripts if re.search(r"^#\s*(SBATCH|PAL)\b", text, re.MULTILINE)]
    assert len(wanted) >= 4
    for text in wanted:
        found = scan(text.encode())
        lines = len(re.findall(r"^#\s*(?:SBATCH|PAL)\b", text, re.MULTILINE))
        assert len(re.findall(r"^#(?:SBATCH|PAL) ", text, re.MULTILINE)) == lines
        assert found.words and found.pal and not found.doubt


def test_what_is_added_is_added_to_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Where to add what")[2].partition("\n## ")[0]
    places = [word for word in re.findall(r"`([^` ]+)`", page) if "/" in word or word.endswith(".toml")]
    assert places
    assert not [place for place in places if not (ROOT / place).exists()]


def test_hooks_are_the_checkers_of_make_lint() -> None:
    lint = re.search(r"^lint: ([a-z -]+?) *##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    hooks = re.findall(r"^ +entry: make --silent (\S+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    assert lint
    assert hooks == lint[1].split()


def test_the_changelog_knows_this_version() -> None:
    versions = re.findall(r"^## (\S+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == __version__
