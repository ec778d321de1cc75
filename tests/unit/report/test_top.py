# SPDX-License-Identifier: MIT
"""pal top: what stands on one screen, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import Asks, SlurmJob
from slurm_pal.cli.top import top_command
from slurm_pal.report import top
from slurm_pal.report.inventory import gpu_rows
from slurm_pal.report.move_rows import MoveRow
from slurm_pal.slurm.fake import FakeNode, write_shims
from tests.doubles.fake_commands import in_process
from tests.doubles.running_factory import NOW_S, job, node, overview, scores

SCORES = scores({"n0": (1.0, 1.3), "n1": (1.05, 0.97)})


def seen(*jobs: SlurmJob, moves: tuple[MoveRow, ...] = ()) -> top.View:
    now = overview([node("n0", gpus=2), node("n1", gpus=2)], [one for one in jobs if one.gpus])
    return top.view(gpu_rows(SCORES, now, NOW_S), jobs, moves, NOW_S)


def waiting(job_id: int, **changes: object) -> SlurmJob:
    return job(job_id, {}, state="PENDING", reason="Resources", asks=Asks(gpus=True), gpus_per_node=2, **changes)


def move(made_s: float, **changes: object) -> MoveRow:
    plain = MoveRow(made_s, 7, "u", "n0:1", "n1:1", 1.3, 1.0, 60.0, None, 9.0, "", "requeued", "")  # type: ignore[arg-type]
    return plain._replace(**changes)  # type: ignore[arg-type]


def test_jobs_on_slow_gpus_come_first_then_the_newest_then_those_that_wait() -> None:
    new = job(1, {"n1": [1]}, start_s=NOW_S - 5)
    old = job(2, {"n0": [0]}, comment="pal:job=B;from=name")
    slow = job(3, {"n0": [1], "n1": [0]})
    elsewhere, swept = job(4, {"n9": [0]}), job(5, {"n1": [0]}, name="pal-profile:20261128")
    found = seen(waiting(6), new, old, elsewhere, swept, slow)
    assert [row.job_id for row in found.jobs] == [3, 1, 2, 6]
    assert [row.slowest for row in found.jobs] == [pytest.approx(1.3), pytest.approx(0.97), pytest.approx(1.0), None]
    assert [row.sensitivity for row in found.jobs] == ["", "", "B", ""]
    assert [row.gpus for row in found.jobs] == [2, 1, 1, 2]
    assert (found.gpus, found.used, found.running, found.waiting) == (4, 4, 3, 1)


def test_a_list_of_ours_is_shown_with_what_comes_back() -> None:
    mark = "pal:lease=60;req=n1;exc=;act=nodelist;set=n0"
    ours = waiting(8, comment=mark, req_nodes=("n0",), submit_s=NOW_S - 90)
    theirs = waiting(9, req_nodes=("n0",))
    assert seen(ours, theirs).lists == (top.ListRow(8, "u", 90.0, "n0", "n1"),)


def test_what_does_not_fit_is_counted() -> None:
    jobs = [waiting(number) for number in range(1, 31)]
    found = seen(*jobs, moves=tuple(move(NOW_S - k) for k in range(9)))
    lines = top.tables(found, 20)
    assert len(lines) <= 20 and lines[-1] == f"and {30 - sum('PD' in line for line in lines)} more jobs"
    assert sum("under way (requeued)" in line for line in lines) == top.MOST_MOVES
    assert top.tables(seen(), 20) == ["", "no jobs with GPUs"]


def test_a_narrow_screen_has_fewer_jobs_and_no_longer_lines() -> None:
    jobs = [waiting(number, req_nodes=("n0",)) for number in range(1, 31)]
    for width, height in ((200, 20), (60, 20), (40, 25), (40, 3)):
        lines = top.tables(seen(*jobs), height, width)
        ids = {line.split()[0] for line in lines if line[:1].isdigit()}
        assert len(lines) <= height and all(len(line) <= width for line in lines)
        assert height < 5 or (len(ids) > 1 and lines[-1] == f"and {30 - len(ids)} more jobs"), (width, lines)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    commands = tmp_path / "bin"
    commands.mkdir()
    write_shims(str(commands), str(tmp_path / "fake.json"), [FakeNode("n0", gpus=2), FakeNode("n1", gpus=2)])
    in_process(monkeypatch)
    (tmp_path / "pal.toml").write_text(f'[paths]\nstate_dir = "{tmp_path}"\n')
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def invoke(*words: str) -> Result:
    return CliRunner().invoke(top_command, list(words))


def test_without_a_terminal_it_prints_once(site: Path) -> None:
    result = invoke()
    assert result.exit_code == 0, result.output
    assert "0 of 4 GPUs in use; jobs: 0 running and 0 waiting with GPUs" in result.stdout
    assert "no snapshot" in result.stdout and "n[0-1] ? ?" in result.stdout
    body = json.loads(invoke("--json", "-w", "n1").stdout)
    assert body["schema"] == "pal.top/1" and body["gpus"] == 2 and body["jobs"] == []
    assert invoke("--csv").stdout == ",".join(top.JobRow._fields) + "\n"


def test_bad_words_and_no_slurm(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such node: n7" in str(invoke("-w", "n7").exception)
    assert invoke("--every", "1").exit_code == 2
    monkeypatch.setenv("PATH", "/nonexistent")
    assert isinstance(invoke("--once").exception, SlurmError)
