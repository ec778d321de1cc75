# SPDX-License-Identifier: MIT
"""The word on a job about the GPU that its ranks wait for: believed of the job's own GPUs only."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from slurm_pal.base import marks
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.emulation.collectives import Behaving, Rank, files
from slurm_pal.online import collectives, word
from slurm_pal.online.culprit import Culprit, Found
from slurm_pal.online.word import SlowWord
from slurm_pal.slurm import parse

GPUS = {"n1": (0, 1, 2, 3), "n2": (4, 5)}


def job(comment: str = "", gpus: dict[str, tuple[int, ...]] | None = None) -> SlurmJob:
    made = parse.nobodys(7, {"JobState": "RUNNING"})
    held = GPUS if gpus is None else gpus
    return made._replace(user="ada", gpus=held, nodes=tuple(GPUS), comment=comment, restarts=1)


def found(culprit: Culprit | None, why_not: str = "") -> Found:
    return Found(culprit, (), 6, 2, 480, 60.0, why_not)


@pytest.mark.parametrize(
    ("culprit", "wanted"),
    [
        (Culprit("n1", 2, 4, 2, 0.1, 1.0, False), SlowWord("n1", 2, 1.111, 480, 1000.0)),
        (Culprit("n2.site", 1, 2, 5, 0.1, 1.0, False), SlowWord("n2", 5, 1.111, 480, 1000.0)),
        (Culprit("n2", None, 2, None, 0.1, 1.0, False), SlowWord("n2", None, 1.111, 480, 1000.0)),
        (Culprit("n1", 2, 3, 2, 0.1, 1.0, False), SlowWord("n1", None, 1.111, 480, 1000.0)),
        (None, SlowWord("", None, 1.0, 480, 1000.0)),
    ],
)
def test_what_is_put_is_read(culprit: Culprit | None, wanted: SlowWord) -> None:
    text = marks.put("mine", word.word(found(culprit), job(), 1000.4))
    assert text is not None and word.read(job(text)) == wanted


def test_nothing_is_said_without_evidence_or_of_others() -> None:
    assert word.word(found(None, "too few"), job(), 1000.0) == {}
    assert word.word(found(Culprit("n9", 0, 4, 0, 0.1, 1.0, False)), job(), 1000.0) == {}


@pytest.fixture(autouse=True)
def _without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job reads for a second at most, which on a busy machine may not be enough."""
    monkeypatch.setattr(collectives, "read", partial(collectives.read, clock=lambda: 0.0))


@pytest.mark.parametrize("slow", [("n1", 2), None])
@pytest.mark.parametrize("missing", [None, ("n1", 3), ("n0", 1)])
def test_where_not_all_was_read_only_a_gpu_of_a_whole_node_is_named(
    missing: tuple[str, int] | None, slow: tuple[str, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = {node: tuple(range(4)) for node in ("n0", "n1")}
    ranks = [Rank(node, k, 1.3 if (node, k) == slow else 1.0) for node, held in gpus.items() for k in held]
    for name, text in files(ranks, Behaving(), random.Random(1), start_s=2000.0).items():
        if missing is None or name != f"{missing[0]}-pid{1000 + 7 * missing[1]}.log":
            (tmp_path / name).write_text(text)
    whole = collectives.read
    monkeypatch.setattr(collectives, "read", lambda *given, **named: whole(*given, **named)._replace(cut="time is up"))
    here = job(gpus=gpus)
    said = word.word(word.look(str(tmp_path), here), here, 3000.0)
    assert said.get(marks.SLOW) == ("n1:2" if slow and missing != ("n1", 3) else None)


@pytest.mark.parametrize(
    "text",
    [
        "", "pal:slow=n9:0;x=1.100;n=4;at=5;r=1", "pal:slow=n2:0;x=1.100;n=4;at=5;r=1",
        "pal:slow=n1:2;x=1.100;n=4;at=5;r=0", "pal:slow=n1:2;x=1e9;n=4;at=5;r=1", "pal:slow=n1:2;x=1.1;n=-4;at=5;r=1",
        "pal:slow=n1:;x=1.100;n=4;at=5;r=1", "pal:slow=n1:2;x=1.100;n=4;r=1", "pal:slow=n1:2",
        "pal:slow=n1:2;x=nan;n=4;at=5;r=1", "pal:slow=n1:\u0662;x=1.100;n=4;at=5;r=1",
    ],
)  # fmt: skip
def test_words_that_nobody_of_us_writes_are_nothing(text: str) -> None:
    assert word.read(job(text)) is None


def test_a_job_accuses_nobody_beyond_measure() -> None:
    seen = word.read(job("pal:slow=n1:2;x=999.000;n=4;at=5;r=1"))
    assert seen is not None and seen.factor == 2.0


def test_of_a_job_that_has_ended_only_its_nodes_are_known() -> None:
    text = "pal:slow=n1:2;x=1.100;n=4;at=5;r=1"
    assert word.read(job(text, {"n1": ()})) == word.read(job(text, {})) == SlowWord("n1", 2, 1.1, 4, 5.0)
    assert word.read(job(text.replace("n1", "n9"), {})) is None
