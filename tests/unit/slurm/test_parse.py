# SPDX-License-Identifier: MIT
"""Parsers against what three releases of Slurm really printed (tests/data)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.decide.job_request import request_of
from slurm_pal.slurm import gres, parse, sealed, states, told

from ...doubles.answers import Told

DATA = Path(__file__).parents[2] / "data"
RELEASES = sorted(p.name for p in DATA.glob("slurm-*"))


def lines(release: str, what: str) -> list[str]:
    return (DATA / release / f"scontrol_{what}.txt").read_text().splitlines()


@pytest.mark.parametrize("release", RELEASES)
def test_nodes(release: str) -> None:
    n1, n2 = (parse.node(line) for line in lines(release, "nodes"))
    assert (n1.name, n1.states, n1.gpus_used, n1.n_gpus) == ("n1", frozenset({"MIXED"}), 4, 4)
    assert n1.gpu_types == ("v100",) * 4
    assert (n2.name, n2.gpus_used, n2.cpus, n2.memory_mib, n2.partitions) == ("n2", 2, 8, 1000, ("gpu",))


@pytest.mark.parametrize(
    ("words", "threads"),
    [
        ("CPUTot=64 Sockets=2 CoresPerSocket=16 ThreadsPerCore=2", 2),
        ("CPUTot=32 Sockets=2 CoresPerSocket=16 ThreadsPerCore=2", 1),  # the site counts cores only
        ("CPUTot=64 CPUEfctv=60 Sockets=2 CoresPerSocket=8 ThreadsPerCore=4", 4), ("CPUTot=16", 1),
    ],
)  # fmt: skip
def test_cpus_for_each_core(words: str, threads: int) -> None:
    assert parse.node(f"NodeName=n1 {words} State=IDLE").threads == threads


@pytest.mark.parametrize(
    ("gres", "used", "free"),
    [
        ("gpu:4", "gpu:1", {}), ("(null)", "", {}), ("gpu:4(S:0-1),nvme:2", "gpu:2(IDX:0-1),nvme:1", {"nvme": 1}),
        ("gpu:v100:4,vmem:16G", "gpu:v100:0(IDX:N/A),vmem:4G", {"vmem": 12 << 30}),
        ("lic:a:3,lic:b:2", "lic:a:1,lic:b:2", {"lic": 2, "lic:a": 2, "lic:b": 0}),
        ("gpu:1,share:no_consume:4", "gpu:0,share:4", {"share": 4}),
    ],
)  # fmt: skip
def test_generic_resources_beside_gpus(gres: str, used: str, free: dict[str, int]) -> None:
    assert dict(parse.node(f"NodeName=n1 CPUTot=1 Gres={gres} GresUsed={used} State=IDLE").others_free) == free


@pytest.mark.parametrize("release", RELEASES)
def test_jobs(release: str) -> None:
    jobs = {job.job_id: job for job in map(parse.job, lines(release, "jobs"))}
    assert jobs[2].gpus == {"n1": (0,)}
    assert jobs[3].gpus == {"n1": (1, 2), "n2": (0, 1)}
    assert jobs[3].nodes == ("n1", "n2")
    assert jobs[3].comment == "pal class=A"
    assert (jobs[5].state, jobs[5].reason, jobs[5].gpus, jobs[5].gpus_per_node) == ("PENDING", "Resources", {}, 4)
    assert jobs[1].state == "COMPLETED"
    assert jobs[2].start_s > 1.7e9 and jobs[2].end_s == 0.0


def rows_of(text: str) -> dict[int, dict[str, str]]:
    """What squeue shows of these jobs."""
    found = {}
    for line in text.splitlines():
        pairs = parse.fields(line)
        row = dict.fromkeys(told.ALL, "(null)") | {
            field: pairs[key] for field, key in told.TEXTS.items() if key in pairs
        }
        row |= {"state": pairs["JobState"], "userid": "0", "nodelist": pairs["NodeList"], "name": pairs["JobName"]}
        found[int(pairs["JobId"])] = row
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_only_jobs_that_hold_or_claim_gpus_are_read_in_bulk(release: str) -> None:
    text = (DATA / release / "scontrol_jobs.txt").read_text()
    records = sealed.Sealed(text, rows_of(text), lambda ids: {})
    jobs, queued = records.counting(marked=False)
    assert [job.job_id for job in jobs] == [2, 3, 4] and queued == frozenset()
    assert jobs[1].gpus == {"n1": (1, 2), "n2": (0, 1)} and jobs[1].comment == "pal class=A"
    assert records.counting(marked=True)[1] == {("gpu", "Resources"), ("gpu", "Priority"), ("gpu", "")}


@pytest.mark.parametrize("release", RELEASES)
def test_what_a_job_asks_for_is_read_alike_in_bulk_and_alone(release: str) -> None:
    text = (DATA / release / "scontrol_jobs.txt").read_text()
    records = sealed.Sealed(text, rows_of(text), lambda ids: {})
    for alone in map(parse.job, text.splitlines()):
        bulk = records.job(alone.job_id)
        assert bulk._replace(raw={}) == alone._replace(raw={})
        assert request_of(bulk) == request_of(alone)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("gpu:4", ("",) * 4),
        ("gpu:a100:2(S:0-1)", ("a100", "a100")),
        ("gpu:v0:1,gpu:v1:2", ("v0", "v1", "v1")),
        ("craynetwork:4,gpu:a100_3g.20gb:1,shard:8", ("a100_3g.20gb",)),
        ("gpu", ("",)),
        ("gres/gpu:2", ("", "")),
        ("", ()),
        ("lustre:1", ()),
    ],
)
def test_gpu_types(text: str, types: tuple[str, ...]) -> None:
    assert gres.gpu_types(text) == types


@pytest.mark.parametrize(
    ("text", "indexes"),
    [
        ("gpu:2(IDX:0-1)", (0, 1)),
        ("gpu:v100:3(IDX:0,2-3)", (0, 2, 3)),
        ("gpu:v0:1(IDX:0),gpu:v1:1(IDX:2)", (0, 2)),
        ("gpu:2(IDX:N/A)", ()),
        ("gpu:0(IDX:)", ()),
        ("", ()),
    ],
)
def test_gpu_indexes(text: str, indexes: tuple[int, ...]) -> None:
    assert gres.gpu_indexes(text) == indexes


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("2:00:00", 7200),
        ("1-0", 86400),
        ("1-02:03", 93780),
        ("1-02:03:04", 93784),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("", None),
        ("1:2:3:4", None),
    ],
)
def test_seconds(text: str, expected_s: int | None) -> None:
    assert parse.seconds(text) == expected_s


def test_a_job_name_cannot_pass_for_a_node_list() -> None:
    line = "JobId=9 JobName=x UserId=u(1) GroupId=g(1) JobState=RUNNING NodeList=n1 MinCPUsNode=1 Comment=a NodeList=n9"
    assert parse.job(line).nodes == ("n1",)


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=200))
def test_any_line_of_text_parses_to_pairs(text: str) -> None:
    assert all(isinstance(value, str) for value in parse.fields(text).values())


@given(st.text(max_size=40))
def test_unknown_states_are_unknown_and_never_a_crash(text: str) -> None:
    assert states.job_state(text) in states.JOB_ACTIVE | states.JOB_WAITING | states.JOB_ENDED | {"UNKNOWN"}
    assert states.node_states(text) <= states.NODE_BASE | states.NODE_FLAGS


@pytest.mark.parametrize(
    ("text", "names", "usable"),
    [
        ("IDLE", {"IDLE"}, True),
        ("idle*", {"IDLE", "NOT_RESPONDING"}, False),
        ("MIXED+DRAIN", {"MIXED", "DRAIN"}, False),
        ("IDLE+PLANNED", {"IDLE", "PLANNED"}, True),
        ("IDLE+CLOUD+POWERED_DOWN", {"IDLE", "CLOUD", "POWERED_DOWN"}, False),
        ("ALLOCATED+MAINT", {"ALLOCATED", "MAINTENANCE"}, False),
        ("BOOTING", {"UNKNOWN"}, False),
        ("", {"UNKNOWN"}, False),
    ],
)
def test_node_states(text: str, names: set[str], usable: bool) -> None:
    assert states.node_states(text) == names
    assert states.usable(states.node_states(text)) is usable


@pytest.mark.parametrize(
    ("text", "asleep"),
    [
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("idle~", True),
        ("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", True),
        ("mixed#", True),
        ("IDLE+CLOUD", False),
        ("idle%", False),
        ("IDLE+CLOUD+POWER_DOWN", False),
        ("DOWN+CLOUD+POWERED_DOWN", False),
        ("IDLE+DRAIN+POWERED_DOWN", False),
        ("IDLE+NOT_RESPONDING", False),
    ],
)
def test_nodes_that_boot_for_a_job(text: str, asleep: bool) -> None:
    assert states.asleep(states.node_states(text)) is asleep


def test_every_state_name_stands_in_exactly_one_set() -> None:
    assert not states.JOB_ACTIVE & states.JOB_WAITING
    assert not (states.JOB_ACTIVE | states.JOB_WAITING) & states.JOB_ENDED
    assert states.NODE_UNUSABLE <= states.NODE_BASE | states.NODE_FLAGS


def test_only_active_reservations_count() -> None:
    line = "ReservationName=maint StartTime=2026-01-01T00:00:00 Nodes=n[1-2] NodeCnt=2 State={}"
    assert parse.reservation(line.format("ACTIVE")) == ("maint", ("n1", "n2"))
    assert parse.reservation(line.format("INACTIVE")) is None


def test_a_record_whose_texts_look_like_keys_is_nobodys() -> None:
    for texts in ({"name": "a UserId=v(9)"}, {"comment": "b JobState=PENDING"}, {"account": "a NodeList=n9"}):
        job = parse.job(Told(1, **texts).record())  # type: ignore[arg-type]
        assert (job.user, job.comment, job.gpus, job.nodes, job.admin_comment) == ("", "", {}, (), "")
