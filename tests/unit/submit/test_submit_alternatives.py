# SPDX-License-Identifier: MIT
"""Alternatives of a submission: what users write, what sbatch gets, and what earlier jobs teach."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.decide.alternatives import COST, TIME
from slurm_pal.slurm.question import Completed
from slurm_pal.submit import alternatives, argv, choice, place_history
from slurm_pal.submit.alternatives import Choices, NamedPlace, parse
from slurm_pal.submit.place_history import Ran
from slurm_pal.submit.script import scan

GPU, CPU = "gpu:partition=a100,gres=gpu:1,est=20m", "cpu:partition=cpu,cpus=32,est=2h"
SCRIPT = (
    b"#!/bin/bash\n#SBATCH --gres=gpu:2 -p a100\n#PAL alt=" + GPU.encode() + b"\n#PAL alt=" + CPU.encode() + b"\nrun\n"
)


def wanted(*words: str, script: bytes = SCRIPT, said: list[str] | None = None, **settings: str) -> Choices | None:
    line = argv.parse([*words, "job.sh"])
    config = Config()
    for name, value in settings.items():
        config.set("submit", name, value, "test")
    read = scan(script)._replace(body=script)
    return alternatives.wanted(choice.choice(line), {}, line, read, config, 0.0, said if said is not None else [])


def test_alternatives_are_sbatchs_options_by_other_names() -> None:
    assert parse(GPU) == NamedPlace("gpu", "a100", (("partition", "a100"), ("gres", "gpu:1")), 1200.0)
    assert parse("x:partition=p,est=1-12:00:00,time=2-0").est_s == 129600.0
    for bad in (
        "gpu", "gpu:", ":partition=p,est=1", "gpu:partition=p", "gpu:est=1", "gpu:partition=p,est=soon",
        "gpu:partition=p,est=0", "gpu:partition=p,est=1,what=2", "gpu:partition=a;b,est=1", "2:partition=p,est=1",
        "gpu:partition=p,est=1,mem",
        "gpu:partition=a)b,est=1", "gpu:partition=a|b,est=1", "gpu:partition=$(id),est=1",
        "a b:partition=p,est=1",
    ):  # fmt: skip
        with pytest.raises(UsageError):
            parse(bad)


@given(st.text("gpu:partition=a,est1 ;$", max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        found = parse(text)
    except UsageError:
        return
    assert found.est_s > 0 and found.partition and all(" " not in word and ";" not in word for word in found.words)


def test_a_place_without_gpus_gets_none() -> None:
    found = wanted()
    assert found is not None and found.declared and found.goal.kind == TIME
    assert [place.words for place in found.places] == [
        ("--partition=a100", "--gres=gpu:1"), ("--partition=cpu", "--cpus-per-task=32", "--gres=none"),
    ]  # fmt: skip
    total = wanted(script=SCRIPT.replace(b"--gres=gpu:2", b"--gpus=2"))
    assert total is not None and total.places[1].words[-1] == "--gpus=0" and total.places[0].words[-1] == "--gpus=0"


def test_what_is_typed_stands() -> None:
    said: list[str] = []
    found = wanted("-p", "cpu", said=said)
    assert found is not None and [place.name for place in found.places] == ["cpu"] and "gpu" in said[0]
    assert wanted("-p", "other") is None
    typed = wanted("--pal-alt", "a:partition=x,est=1", "--pal-alt=b:partition=y,est=2")
    assert typed is not None and [place.name for place in typed.places] == ["a", "b"]


def test_partitions_are_places_where_there_is_a_goal() -> None:
    plain = b"#!/bin/bash\n#SBATCH --gres=gpu:1 -p a,b\nrun\n"
    assert wanted(script=plain) is None
    found = wanted("--pal-goal=cost", script=plain)
    assert found is not None and found.goal.kind == COST and not found.declared
    assert [place.words for place in found.places] == [("--partition=a",), ("--partition=b",)]
    assert wanted(script=plain, goal="cost") is not None
    assert wanted(script=plain.replace(b"#SBATCH", b"#PAL goal=cost\n#SBATCH")) is not None
    said: list[str] = []
    assert (
        wanted("--pal-goal=cost", script=plain.replace(b"a,b", b"a"), said=said) is None
        and "nothing to choose" in said[0]
    )


def test_wrong_words_are_refused_where_they_are_typed_and_reported_elsewhere() -> None:
    for words in (["--pal-goal=money"], ["--pal-alt=x"], ["--pal-alt", GPU, "--pal-alt", GPU]):
        with pytest.raises(UsageError, match="--pal-"):
            wanted(*words)
    said: list[str] = []
    assert wanted(script=SCRIPT.replace(b"est=2h", b"est=soon"), said=said) is None and "ignored" in said[0]
    said = []
    assert wanted(script=SCRIPT.replace(b"#PAL alt=gpu", b"#PAL goal=money\n#PAL alt=gpu"), said=said) is not None
    assert "money" in said[0]


def test_the_job_learns_its_place_by_its_partition() -> None:
    found = wanted()
    assert found is not None
    body = alternatives.with_name(SCRIPT, found).decode()
    assert body.splitlines()[4].startswith('case "$SLURM_JOB_PARTITION" in a100) PAL_ALT=gpu;; cpu) PAL_ALT=cpu ')
    assert body.splitlines()[4].endswith("; run") and len(body.splitlines()) == 5


def test_a_heterogeneous_job_has_no_choice() -> None:
    said: list[str] = []
    assert wanted(":", "--gres=gpu:1", said=said) is None and "heterogeneous" in said[0]


# -- what earlier jobs teach -----------------------------------------------------------------


def ran(job_id: int, wait_s: float, run_s: float = -2.0, planned_s: float = 600.0, name: str = "train") -> Ran:
    return Ran(job_id, place_history.key_of(name), "gpu", "a100", planned_s, 0.0, wait_s, run_s)


def test_earlier_waits_correct_slurms_plan() -> None:
    assert place_history.corrected([], "a100", 900.0) == (900.0, 0)
    optimist, _ = place_history.corrected([ran(n, 6000.0) for n in range(8)], "a100", 900.0)
    pessimist, why = place_history.corrected([ran(n, 0.0) for n in range(8)], "a100", 900.0)
    one, _ = place_history.corrected([ran(1, 0.0)], "a100", 900.0)
    assert pessimist < one < 900.0 < optimist and why == 8
    assert place_history.corrected([ran(1, 0.0)], "other", 900.0)[0] == 900.0
    assert place_history.corrected([ran(1, 1e9)], "a100", 0.0)[0] < 16 * 60.0


def test_three_runs_replace_an_estimate() -> None:
    jobs = [ran(1, 0.0, 100.0), ran(2, 0.0, 500.0), ran(3, 0.0, -2.0)]
    assert place_history.run_s(jobs, "train", "gpu") is None
    jobs.append(ran(4, 0.0, 200.0))
    assert place_history.run_s(jobs, " train ", "gpu") == 200.0
    assert place_history.run_s(jobs, "other", "gpu") is None and place_history.run_s(jobs, "train", "cpu") is None


def test_jobs_are_looked_up_until_they_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for number in range(1, 6):
        place_history.add(ran(number, -1.0, -1.0))
    at = "2026-11-27T10:0"
    rows = [
        f"1|{at}0:00|{at}1:00|{at}5:00|COMPLETED", f"2|{at}0:00|{at}1:30|Unknown|RUNNING",
        f"3|{at}0:00|Unknown|Unknown|PENDING", f"4|{at}0:00|None|{at}5:00|CANCELLED by 0", "what|is|it|row|here", "5|x",
    ]  # fmt: skip
    asked: list[str] = []

    def sacct(words: list[str], stdin: str) -> Completed:
        if words[0] == "squeue":  # no node boots
            return Completed(0, "", "")
        asked.append(words[words.index("-j") + 1])
        return Completed(0, "\n".join(rows), "")

    place_history.settle(sacct)
    seen = {one.job_id: (one.wait_s, one.run_s) for one in place_history.read()}
    assert seen == {1: (60.0, 240.0), 2: (90.0, -1.0), 3: (-1.0, -1.0), 4: (-2.0, -2.0), 5: (-1.0, -1.0)}
    place_history.settle(sacct)
    assert asked == ["1,2,3,4,5", "2,3,5"]
    path = next((tmp_path / "slurm-pal" / "places").rglob("history.json"))
    path.write_text("{")
    assert place_history.read() == []
    place_history.add(ran(9, 1.0))
    assert [one.job_id for one in place_history.read()] == [9] and path.stat().st_mode & 0o777 == 0o600


def test_without_accounting_slurmctld_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place_history.add(ran(1, -1.0, -1.0))

    def run(words: list[str], stdin: str) -> Completed:
        told = "1|2026-11-27T10:00:00|2026-11-27T10:01:00|2026-11-27T10:02:00|COMPLETED|\n"
        return Completed(1, "", "no accounting") if words[0] == "sacct" else Completed(0, told, "")

    place_history.settle(run)
    assert place_history.read()[0].run_s == 60.0


def test_a_job_for_which_a_node_boots_still_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place_history.add(ran(1, -1.0, -1.0))
    at, booting = "2026-11-27T10:0", True

    def run(words: list[str], stdin: str) -> Completed:
        if words[0] == "sacct":
            return Completed(0, f"1|{at}0:00|{at}0:0{1 if booting else 9}|Unknown|RUNNING\n", "")
        return Completed(0, f"1|{at}0:00|{at}0:01|N/A|CONFIGURING|\n" if booting and "CF" in words else "", "")

    place_history.settle(run)
    assert place_history.read()[0].wait_s == -1.0
    booting = False
    place_history.settle(run)
    assert place_history.read()[0].wait_s == 9.0
