# SPDX-License-Identifier: MIT
"""The demonstration from end to end on a real Slurm, with three short jobs instead of twelve long ones."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

import pytest

from slurm_pal.base.errors import PalError
from slurm_pal.lab import demo

from .conftest import skip_without_slurm


@pytest.fixture
def directory() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="pal")
    yield path
    shutil.rmtree(path)


@pytest.mark.real_slurm
def test_the_demonstration(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_slurm()
    if not os.path.exists(os.path.join(os.path.dirname(sys.executable), "palsub")):
        pytest.skip("the programs are not installed beside this Python")
    monkeypatch.setattr(demo, "WORKLOAD", tuple(demo.DemoJob(name, 1, 2.0) for name in "ABC"))
    said: list[str] = []
    ratios = demo.demonstrate(directory, seed=1, say=said.append)
    text = "\n".join(said)
    assert set(ratios) == {"A", "B", "C", "all"} and all(value > 0 for value in ratios.values())
    assert "32 GPUs measured" in text and text.count("What palsub decided:") == 3
    assert "The lab is stopped and removed" in text
    assert not any("\n" in line for line in said), "a line end would be shown as \\x0a"
    assert not os.path.exists(os.path.join(directory, "lab"))


def test_ratios_are_of_means_per_class() -> None:
    def outcome(name: str, completion_s: float) -> demo.FinishedJob:
        return demo.FinishedJob(demo.DemoJob(name, 1, 1.0), 1, "n0:0", 1.0, 1.0, completion_s)

    plain = [outcome("A", 10.0), outcome("A", 30.0), outcome("C", 10.0)]
    placed = [outcome("A", 10.0), outcome("A", 20.0), outcome("C", 11.0)]
    assert demo.ratios(plain, placed) == pytest.approx({"A": 0.75, "C": 1.1, "all": 41 / 50})


def test_a_job_without_a_result_is_an_error(directory: str) -> None:
    with pytest.raises(PalError, match="left no result"):
        demo._outcome(demo.DemoJob("A", 1, 1.0), 7, 0.0, directory)
