# SPDX-License-Identifier: MIT
"""pal trial as a user meets it: what is refused, and what is asked before anything is started."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.cli.pal import main
from slurm_pal.lab import programs


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Slurm is needed for what is refused, and nothing is written but in tmp_path."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(programs, "find_programs", dict)
    monkeypatch.setattr(programs, "account_name", lambda: "me")
    monkeypatch.setattr(sys, "stdin", io.StringIO())


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Exit code and stderr."""
    monkeypatch.setattr(sys, "argv", ["pal", "trial", *argv])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().err


SMALL = ("--generate", "jobs=20,cap_h=0.6")
WIDE = (
    "# pal.trace/1 wide\njob_id,submit_s,gpus,nodes,per_node,gpu_type,whole_nodes,ideal_s,sensitivity,limit_s,app,user,"
)
WIDE += (
    "account,partition,locality_penalty,move_cost_s,movable\n1,0,64,,,,0,600,A,,,,,,,,1\n2,0,1,,,,0,600,A,,,,,,,,1\n"
)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ((), "give a trace with --trace FILE"),
        ((*SMALL, "--arms", "magic"), "arm 'magic' is not one of sbatch, palsub, filter, tick, tick+moves"),
        ((*SMALL, "--arms", "tick,tick"), "given twice"),
        ((*SMALL, "--compress", "0.5"), "must be a number at least 1"),
        ((*SMALL, "--cluster", "a=2x4,b=2x4"), "nodes of one size and one partition"),
        ((*SMALL, "--slurm-conf", "/nowhere"), "--slurm-conf /nowhere: there is no such file"),
        ((*SMALL, "--pal-toml", "/nowhere"), "--pal-toml /nowhere: there is no such file"),
        (("--generate", "jobs=500,load=1"), "give -y to begin without a question"),
        (("--generate", "jobs=20000,load=1"), "20000 jobs are more than a lab can hold"),
        ((*SMALL, "--compress", "9999"), "more than labs on this machine can start"),
        (("--resume", "/nowhere", "-v"), "there is no trial"),
        (("--resume", "/nowhere", "--compress", "30"), "--compress means nothing with --resume"),
        (("--trace", "WIDE"), "no time limit"),
        (("--trace", "WIDE", "--limit-factor", "2"), "wants 64 GPUs"),
    ],
)
def test_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
    text: str,
) -> None:
    (tmp_path / "wide.csv").write_text(WIDE)
    words = [str(tmp_path / "wide.csv") if word == "WIDE" else word for word in argv]
    code, err = said(monkeypatch, capsys, *words)
    assert code == Exit.USAGE and text in err, err
    errors = [line for line in err.splitlines() if "by the simulator, until about" not in line]
    assert len([line for line in errors if not line.startswith(("Usage:", "Try ")) and line]) == 1, err
    assert not (tmp_path / "state").exists()  # nothing was begun


def test_a_program_that_is_not_installed_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    code, err = said(monkeypatch, capsys, *SMALL, "--arms", "tick", "--out", str(tmp_path / "new"))
    assert (
        code == Exit.FAILED and err == f"pal: error: palsub is not installed beside {tmp_path}/python3: pip install .\n"
    )
    assert not (tmp_path / "new").exists()


def test_the_folder_is_not_made_before_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = said(monkeypatch, capsys, "--generate", "jobs=500,load=1", "--out", str(tmp_path / "new"))
    assert code == Exit.USAGE and "9 arms (sbatch takes" in err
    assert not (tmp_path / "new").exists()
