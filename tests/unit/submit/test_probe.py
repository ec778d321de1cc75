# SPDX-License-Identifier: MIT
"""A probe: what it takes from the user's script and what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.submit import probe
from slurm_pal.submit.argv import no_site_options
from slurm_pal.submit.checkpoint import CannotWrap

BIG = b"""#!/bin/bash
#SBATCH --nodes=4 --gpus-per-node=a100:8 -p gpu
#SBATCH -t 2-0 -J "big one" --mem=10G -o out.txt
#SBATCH --array=1-5
#SBATCH --comment="it's mine"
#PAL class=B
srun python3 train.py
"""


def made(tmp_path: Path, *words: str, body: bytes = BIG, **env: str) -> probe.Prepared:
    (tmp_path / "job.sh").write_bytes(body)
    return probe.prepared([*words, str(tmp_path / "job.sh"), "arg"], env, Config(), no_site_options)


def test_it_asks_for_one_gpu_and_two_minutes_whatever_the_script_asks_for(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert found.name == "big one"
    assert found.argv == (
        "sbatch", "--parsable", "--nodes=1", "--ntasks=1", "--gres=gpu:a100:1", "--time=2", "--no-requeue",
        "--job-name=pal-probe:big one", "--output=/dev/null", found.path, "arg",
    )  # fmt: skip
    text = found.text.decode().split("\n")
    assert text[1:6] == ["#SBATCH -p gpu", "#SBATCH --mem=10G", "#", '#SBATCH --comment="it\'s mine"', "#PAL class=B"]
    assert text[6].endswith("; srun python3 train.py") and "--stage probe" in text[6]


def test_the_command_line_keeps_what_a_probe_can_have(tmp_path: Path) -> None:
    found = made(tmp_path, "-A", "me", "-N2", "--gpus=4", "-o", "mine.out", body=b"#!/bin/sh\ntrue\n")
    assert found.argv[:5] == ("sbatch", "-A", "me", "-o", "mine.out") and "-N2" not in found.argv
    assert "--output=/dev/null" not in found.argv and "--job-name=pal-probe:job.sh" in found.argv


def test_variables_that_ask_for_more_are_left_out() -> None:
    given = {
        "SBATCH_GPUS": "8",
        "SBATCH_PARTITION": "gpu",
        "SBATCH_JOB_NAME": "x",
        "SBATCH_TIMELIMIT": "9",
        "HOME": "/",
    }
    assert probe.environment_of(given) == {"SBATCH_PARTITION": "gpu", "HOME": "/"}


def test_a_line_of_wrap_can_be_probed() -> None:
    found = probe.prepared(["--wrap", "python3 train.py"], {}, Config(), no_site_options)
    assert found.path == "" and found.name == "wrap"
    assert any(word.startswith("--wrap=(") and word.endswith("; python3 train.py") for word in found.argv)


def test_longer_observation_needs_a_longer_limit(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_bytes(BIG)
    config = Config()
    config.set("sensitivity", "active_s", 300.0, "test")
    found = probe.prepared([str(tmp_path / "job.sh")], {}, config, no_site_options)
    assert "--time=6" in found.argv


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], UsageError),
        (["-N1"], UsageError),
        (["/no/such/script"], UsageError),
        (["--pal-class=A", "x"], UsageError),
    ],
)  # fmt: skip
def test_what_cannot_be_probed_is_told(words: list[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        probe.prepared(words, {}, Config(), no_site_options)


def test_only_a_shell_can_be_probed(tmp_path: Path) -> None:
    with pytest.raises(CannotWrap, match="python3"):
        made(tmp_path, body=b"#!/usr/bin/env python3\nprint()\n")
