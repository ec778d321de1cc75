# SPDX-License-Identifier: MIT
"""Facts and users' texts in Slurm's answers: whatever a user writes, nobody else's job or node changes by it.

Each of these texts once made GPUs busy, slow or somebody else's, ended the daemon, or ran a program.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import SlurmError, UsageError
from slurm_pal.base.hostlist import MOST_NAMES, expand
from slurm_pal.base.numbers import digits
from slurm_pal.decide.facts import MoveSettings, facts_of
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.offers import claimed_gpus, free_indexes, used_indexes
from slurm_pal.slurm import parse, sealed
from slurm_pal.slurm.cli import CliClient

from ...doubles.answers import Answers, Told
from ...doubles.trials import trials

VICTIM = Told(2, name="train", user="victim", uid=9, indexes="1", comment="mine")
GHOST = Told(900001, user="victim", uid=9, indexes="0-3", gpus=4, comment="pal:job=A;mov=1").record().strip()
FORGED_VICTIM = Told(2, name="train", user="victim", uid=9, indexes="2-3", comment="pal:job=A;mov=1").record().strip()


def seen(*jobs: Told, used: int = 4) -> dict[int, parse.SlurmJob]:
    """What a look finds, which is also what all other ways to ask find."""
    client = CliClient(Answers(jobs, used=used))
    found = {job.job_id: job for job in client.overview(marked=True).jobs}
    assert {job.job_id for job in client.jobs()} == {job.job_id for job in jobs}
    assert set(client.jobs_of([job.job_id for job in jobs])) == {job.job_id for job in jobs}
    return found


@pytest.mark.parametrize("key", ["name", "comment", "command", "admin", "account", "wckey", "host"])
@pytest.mark.parametrize("text", [GHOST, FORGED_VICTIM, f"scontrol: {FORGED_VICTIM}", "JobId=2 JobName=train UserId="])
@pytest.mark.parametrize("order", [1, -1])
def test_a_text_makes_no_job_and_changes_none(key: str, text: str, order: int) -> None:
    """Wherever a line end and a record are written, before or behind the job that they speak of."""
    jobs = [Told(1, **{key: f".\n{text}\nJobId=3 "}), VICTIM][::order]  # type: ignore[arg-type]
    found = seen(*jobs)
    assert set(found) == {1, 2}
    assert (found[2].name, found[2].user, found[2].comment, found[2].gpus) == ("train", "victim", "mine", {"n0": (1,)})
    assert found[1].gpus in ({"n0": (0,)}, {}) and found[1].user in ("u", "")
    assert used_indexes(found.values())["n0"] <= {0, 1}


@pytest.mark.parametrize("key", ["account", "wckey", "host"])
@pytest.mark.parametrize(
    "text",
    [
        "a UserId=victim(9) JobState=RUNNING",
        "a QOS=b JobState=RUNNING NodeList=n0 JOB_GRES=gpu:4 Nodes=n0 CPU_IDs=0 Mem=1 GRES=gpu:4(IDX:0-3) "
        "MinCPUsNode=1 Licenses=x Command=",
        "a NodeList=n7",
    ],
)
def test_what_stands_before_the_indexes_is_not_read_as_them(key: str, text: str) -> None:
    job = seen(Told(1, **{key: text}))[1]  # type: ignore[arg-type]
    assert (job.gpus, job.user, job.state) == ({}, "", "RUNNING")
    assert facts_of(job, MoveSettings()).ours is False and request_of(job) is not None


@pytest.mark.parametrize("key", ["features", "prefer", "reservation"])
@pytest.mark.parametrize(
    "text",
    [
        "fast*1 NodeList=n7 UserId=victim(1) JobState=PENDING ReqNodeList=n7 NumNodes=9 Licenses=",
        "fast*1 Nodes=n0 CPU_IDs=0 Mem=1 GRES=gpu:4(IDX:0-3) MinCPUsNode=1",
        "fast*1 JobId=2 OverSubscribe=NO Licenses=x",
        f"fast*1\n{FORGED_VICTIM}",
        "odd name",
        "DelayBoot=00:00:00 OverSubscribe=NO Contiguous=1 Licenses=(null) Network=(null)",
        " ",
    ],
)
def test_what_nodes_are_wanted_makes_no_job_and_changes_none(key: str, text: str) -> None:
    """slurmctld of 22.05 takes any words behind a number of nodes, and reservations have the names they are given."""
    found = seen(Told(1, **{key: text}), VICTIM)  # type: ignore[arg-type]
    assert set(found) == {1, 2} and found[2].gpus == {"n0": (1,)} and found[2].user == "victim"
    job = found[1]
    assert (job.job_id, job.user, job.state, job.nodes, job.gpus) == (1, "u", "RUNNING", ("n0",), {"n0": (0,)})
    assert (job.req_nodes, job.raw["OverSubscribe"], job.raw["NumNodes"]) == ((), "OK", "1")
    assert job.raw[key.capitalize()] == text.replace("\n", " ")
    assert request_of(job) is not None


def test_what_nodes_are_wanted_is_read_to_its_end_by_palsub_too() -> None:
    """Another job's whole nodes count where it is pinned, whatever stands before them."""
    waits = Told(1, state="PENDING", nodes="", req="n0", features="fast*1 OverSubscribe=NO ReqNodeList=n1")
    (job,) = CliClient(Answers([waits], used=0)).overview().jobs
    assert (job.req_nodes, job.raw["OverSubscribe"], job.job_id) == (("n0",), "OK", 1)


def test_other_features_than_squeue_shows_are_nobodys() -> None:
    answers = Answers([Told(1, features="fast")])
    record = Told(1, features="fast*1 JobState=PENDING").record()
    answers._show = lambda words, ask=answers._show: record if "job" in words[:1] else ask(words)  # type: ignore[method-assign,misc]
    job = CliClient(answers).jobs()[0]
    assert (job.user, job.state, job.gpus) == ("", "RUNNING", {})


def test_a_name_is_known_to_its_end() -> None:
    name = "a UserId=victim(9) GroupId=g(1) JobState=PENDING NodeList=n9"
    job = seen(Told(1, name=name, comment="pal:job=B"))[1]
    assert (job.name, job.user, job.state, job.gpus, job.comment) == (name, "u", "RUNNING", {"n0": (0,)}, "pal:job=B")


def test_indexes_that_a_node_does_not_count_are_not_believed() -> None:
    job = Told(1, indexes="0-3", gpus=4)
    assert seen(job, used=4)[1].gpus == {"n0": (0, 1, 2, 3)} and seen(job, used=1)[1].gpus == {"n0": ()}
    client = CliClient(Answers([job], used=1))
    overview = client.overview()
    used = used_indexes(overview.jobs)
    assert free_indexes(overview.nodes[0], used.get("n0", set()), 0) == [1, 2, 3]


def test_a_claim_is_as_large_as_slurm_says() -> None:
    """What stands in the record behind the user's texts is taken from squeue."""
    words = {"command": "x TresPerNode=gres:gpu:4000", "comment": "TresPerNode=gpu:9"}
    waits = Told(1, state="PENDING", nodes="", req="n0", **words)
    (node,) = CliClient(Answers([waits], used=0)).nodes()
    room = node._replace(cpus=16, memory_mib=64000)
    assert claimed_gpus(seen(waits).values(), [room], {}) == {"n0": 1}


def test_of_many_doubled_ids_a_bounded_number_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "MOST_TWICE", 3)
    jobs = [Told(k, indexes=str(k - 1)) for k in range(1, 5)]
    forged = "".join(Told(k, indexes="3").record() for k in range(1, 5))
    jobs.append(Told(5, nodes="", state="PENDING", comment=f"x\n{forged}"))
    answers = Answers(jobs)
    found = {job.job_id: job.gpus for job in CliClient(answers).overview().jobs}
    assert sum(word.startswith("show job ") for line in answers.asked for word in line) == 3
    assert found == {1: {"n0": (0,)}, 2: {"n0": (1,)}, 3: {"n0": (2,)}, 4: {}}


ODD = ["ArrayJobId=²", "MinMemoryCPU=.", "NodeList=n[0-8000000]", "NodeList=@x';id;'", "Restarts=²", "TimeLimit=²-1"]


@pytest.mark.parametrize("key", ["name", "comment", "command", "account", "wckey", "host", "admin"])
@pytest.mark.parametrize("text", ODD)
def test_an_odd_word_is_one_jobs_trouble_at_most(key: str, text: str) -> None:
    jobs = [Told(1, **{key: f"x {text} "}), Told(3, **{key: f"x\nJobId=1 {text}"}), VICTIM]  # type: ignore[arg-type]
    found = seen(*jobs)
    assert set(found) == {1, 2, 3} and found[2].gpus == {"n0": (1,)}
    for job in found.values():
        request_of(job)
        facts_of(job, MoveSettings())


@pytest.mark.parametrize("text", ODD)
def test_a_value_that_slurm_never_prints_is_no_exception(text: str) -> None:
    key, line = text.partition("=")[0], VICTIM.record()
    before, found, behind = line.partition(f" {key}=")
    line = f"{before} {text} {behind.partition(' ')[2]}" if found else line.replace(" Nice=0", f" {text}")
    job = parse.job(line)
    assert job.job_id == 2 and request_of(job) is not None


def test_a_huge_list_costs_nothing() -> None:
    tracemalloc.start()
    for text in ("n[0-8000000]", f"n[1-60000]{'x' * 300}", "n[1-9]" * 30, f"n[{'1,' * 100_000}1]"):
        with pytest.raises(UsageError, match=r"stands for more|cannot read"):
            expand(text)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 40 << 20
    assert len(expand(f"n[0-{MOST_NAMES - 1}]")) == MOST_NAMES


@pytest.mark.parametrize(
    "text", ["@x", "@x';id;'", "n[1-2]!n1", "n1&n2", "n1^n2", "@*", "%x", "n1 n2", "n1\nn2", "²", "n[²]"]
)
def test_slurms_form_starts_no_program(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ClusterShell asks a group source, which is a shell command, for whatever stands behind an @."""
    monkeypatch.setattr(os, "posix_spawn", lambda *_: pytest.fail("a program was started"))
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was started"))
    with pytest.raises(UsageError, match="cannot read the host list"):
        expand(text)


@given(
    st.lists(st.text(max_size=60), min_size=3, max_size=3), st.sampled_from(["name", "comment", "command", "account"])
)
@trials(60)
def test_no_text_is_an_exception_or_another_job(texts: Sequence[str], key: str) -> None:
    jobs = [Told(k + 1, **{key: text.replace("\r", "")}) for k, text in enumerate(texts)]  # type: ignore[arg-type]
    found = seen(*jobs)
    assert set(found) == {1, 2, 3} and all(job.gpus in ({"n0": (0,)}, {}) for job in found.values())


@pytest.mark.parametrize("stdout", ["x", "1~", "squeue: nothing\n", "\n"])
def test_a_squeue_that_says_something_else_is_one_clear_error(stdout: str) -> None:
    answers = Answers([VICTIM])

    def odd(argv: Sequence[str], stdin: str) -> object:
        return answers(argv, stdin)._replace(stdout=stdout) if argv[0] == "squeue" else answers(argv, stdin)

    client = CliClient(odd)  # type: ignore[arg-type]
    if stdout.strip():
        with pytest.raises(SlurmError, match="squeue"):
            client.overview()
    else:
        assert client.overview().jobs == ()


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), ("0", 0), *((text, None) for text in ("²", "٣", "1_0", "-1", "", " 1", "9" * 19))],
)
def test_digits(text: str, number: int | None) -> None:
    assert digits(text) == number
