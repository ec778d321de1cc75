# SPDX-License-Identifier: MIT
"""pal report --card: the numbers, a piece of HTML that does nothing, and files that are replaced whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.errors import DataError, SlurmError, UsageError
from slurm_pal.report.gpus.card import card, html
from slurm_pal.report.inventory import NEVER_MEASURED, NOT_IN_SLURM, GpuRow
from slurm_pal.slurm.fake import FakeNode, write_shims

from ...doubles.fake_commands import in_process
from ...doubles.html_reader import HOSTILE, Reader
from .test_report_cli import invoke, measured, site  # noqa: F401  # fixtures

AT_S = 1.8e9


def gpu(node: str, index: int, slowdown: float | None, name: str = "v0", **changes: Any) -> GpuRow:  # noqa: ANN401
    scores = {} if slowdown is None else {"A": slowdown}
    row = GpuRow(node, index, f"GPU-{node}-{index}", "H100", scores, {"A": name} if scores else {}, 60.0, False, ())
    return row._replace(**changes)


ROWS = [
    gpu("n1", 0, 0.98), gpu("n1", 1, 1.01, in_use=True), gpu("n1", 2, 1.2, "v10"), gpu("n1", 3, 1.3, "v2"),
    gpu("n2", 0, 1.0, flags=("ecc",)), gpu("n2", 1, None, age_s=None, flags=(NEVER_MEASURED,)), gpu("n3", 0, 1.02),
    gpu("n9", 0, 2.0, flags=(NOT_IN_SLURM,), in_use=None),
]  # fmt: skip


def test_numbers() -> None:
    body = card(ROWS, "lab", AT_S, {"n3"})
    (failed,) = [row for row in ROWS if row.state != "ok"] or [None]
    assert failed is not None, "ecc is a fault"
    assert [body[key] for key in ("gpus", "in_use", "free", "off", "failed", "never_measured", "slow", "oldest_s")] == [
        7, 1, 4, 2, 1, 1, 2, 60,
    ]  # fmt: skip
    assert body["slowest"] == {"node": "n1", "index": 3, "model": "H100", "slowdown": 1.3}
    classes = [(one["class"], one["gpus"], one["free"], one["slowdown_low"]) for one in body["classes"]]
    assert classes == [("v0", 4, 1, 0.98), ("v2", 1, 1, 1.3), ("v10", 1, 1, 1.2), ("?", 1, 1, None)]
    assert all(sum(one[key] for one in body["classes"]) == body[key] for key in ("gpus", "in_use", "free", "off"))


def test_without_slurm_and_without_scores() -> None:
    blind = card([row._replace(in_use=None) for row in ROWS], "", AT_S)
    assert (blind["in_use"], blind["free"], blind["off"], blind["cluster"]) == (None, None, None, None)
    text = " ".join(Reader(html(blind)).text)
    assert "Slurm does not answer: which GPUs are free is not known." in text and "None" not in text
    unknown = card([gpu("n1", 0, None, age_s=None)], "lab", AT_S)
    assert (unknown["slowest"], unknown["oldest_s"]) == (None, None)
    assert "No speed has been measured yet." in html(unknown)
    assert "No GPU is known." in html(card([], "lab", AT_S))


def test_the_piece_of_html_does_nothing_and_hostile_names_stay_text() -> None:
    rows = [
        row._replace(node=HOSTILE, model=f"{HOSTILE}\x1b[31m\u202e", variability_class={"A": HOSTILE}) for row in ROWS
    ]
    text = html(card(rows, HOSTILE, AT_S))
    read = Reader(text)
    assert read.open == [] and read.tags[0] == "section" and read.tags.count("section") == 1
    allowed = {"section", "h2", "div", "p", "table", "thead", "tbody", "tr", "th", "td", "time"}
    assert {*read.tags} <= allowed
    assert {name for _, name, _ in read.attributes} <= {"class", "scope", "datetime"}
    assert not re.search(r"<(script|style|link|img|iframe|html|body)\b|\bon\w+=(?!y&gt;)|://(?!evil)", text)
    assert HOSTILE in " ".join(read.text), "as text"
    assert "\x1b" not in text and "\u202e" not in text
    assert "<%" not in html(card([gpu("<%= exit %>", 0, 1.0)], "<%= exit %>", AT_S)), "nothing for ERB"


def test_files(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    page, data = measured / "card.html", measured / "card.json"
    found = invoke("report", "--card", str(page), "--card", str(data))
    assert (found.exit_code, found.output) == (0, ""), "cron mails what is said"
    body = json.loads(data.read_text())
    assert (body["schema"], body["gpus"], body["free"]) == ("pal.card/1", 12, 12)
    assert page.read_text().startswith('<section class="card slurm-pal">') and page.stat().st_mode & 0o777 == 0o644
    assert json.loads(data.read_text()) == body
    some = measured / "some.json"
    assert invoke("report", "-w", "n0001", "--card", str(some)).exit_code == 0
    assert json.loads(some.read_text())["gpus"] == 4


def test_gpus_of_a_drained_node_are_not_free(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    nodes = [FakeNode("n0001", gpus=4, state="IDLE+DRAIN"), FakeNode("n0002", gpus=4), FakeNode("n0003", gpus=4)]
    write_shims(str(measured / "bin"), str(measured / "fake.json"), nodes)
    in_process(monkeypatch)
    assert invoke("report", "--card", str(measured / "card.json")).exit_code == 0
    body = json.loads((measured / "card.json").read_text())
    assert (body["gpus"], body["free"], body["off"]) == (12, 8, 4)


def test_what_is_refused_leaves_the_old_card(measured: Path) -> None:  # noqa: F811
    old = measured / "card.html"
    old.write_text("old")
    for words, text in (
        (["--card", "card.txt"], "must end in .html or .json"), (["--card", "/none/card.html"], "no directory /none"),
        (["--card", str(old), "--html", "x.html"], "leave out"), (["--card", str(old), "--json"], "leave out"),
        (["--card", str(old), "--card", str(measured)], "must end in"),
    ):  # fmt: skip
        found = invoke("report", *words)
        assert isinstance(found.exception, UsageError) and text in str(found.exception)
    (measured / "snapshot").unlink()
    for name in ("scontrol", "squeue", "sinfo"):
        (measured / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
    assert isinstance(invoke("report", "--card", str(old)).exception, SlurmError | DataError)
    assert old.read_text() == "old"
