# SPDX-License-Identifier: MIT
"""Jobs with a total of GPUs on a real Slurm: brought together, steered while they wait, and their user's range kept."""

from __future__ import annotations

import json

import pytest

from slurm_pal.base import marks
from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.job_request import own_range, request_of
from slurm_pal.slurm.job_options import NodeRange

from . import queue_of
from .test_rebalance import PAL, Site, site, started  # noqa: F401  # its lab: n0 slow, 4 nodes of 2 GPUs

pytestmark = pytest.mark.real_slurm
SCRIPT = "#!/bin/sh\nsleep 300\n"


def leave(made: Site, **free: int) -> dict[str, int]:
    """Jobs that nobody may touch, so that so many GPUs are free on these nodes, and none elsewhere."""
    names = [f"n{i}" for i in range(4)]
    taken = {name: 2 - free.get(name, 0) for name in names}
    jobs = {name: made.sbatch("-w", name, f"--gres=gpu:{count}") for name, count in taken.items() if count}
    for number in jobs.values():
        made.running(number)
    return jobs


def empty(made: Site, number: int) -> None:
    made.client.cancel([number])
    made.until(number, lambda job: job.state == "CANCELLED")


def spread(made: Site, *words: str) -> SlurmJob:
    job = made.running(made.palsub("--pal-movable", *words))
    assert job.nodes == ("n1", "n2")
    return job


def ticked(made: Site, count: int) -> None:
    """So many further ticks."""
    before = len(made.ticks())
    made.wait(lambda: len(made.ticks()) >= before + count)


def forged(made: Site, comment: str, *words: str) -> int:
    return made.client.submit(
        ["-o", "/dev/null", "--open-mode=append", "-t", "60", f"--comment={comment}", *words], SCRIPT
    )


def test_a_spread_job_is_brought_together_when_a_node_empties(site: Site) -> None:  # noqa: F811
    full = leave(site, n1=1, n2=1)
    job = spread(site, "--gpus=2", "--comment=mine")
    assert own_range(job) == NodeRange(1, None) and job.comment.startswith("mine ")
    with site.daemon():
        ticked(site, 2)
        assert not site.moves()
        empty(site, full["n3"])
        moved = site.running(job.job_id, restarts=1)
        assert (moved.nodes, moved.gpus) == (("n3",), {"n3": (0, 1)})
        move = site.ended()
        assert (move.outcome, move.source, move.target_gpus) == ("moved", "n1:0 n2:0", "n3:0,1") or (
            move.outcome, move.source, move.target_gpus) == ("moved", "n1:1 n2:1", "n3:0,1")  # fmt: skip
        assert moved.comment == job.comment


def test_without_the_setting_it_stays(site: Site) -> None:  # noqa: F811
    full = leave(site, n1=1, n2=1)
    job = spread(site, "--gpus=2")
    with site.daemon(gather=0):
        empty(site, full["n3"])
        ticked(site, 3)
        assert not site.moves()
    assert site.client.job(job.job_id).nodes == job.nodes  # type: ignore[union-attr]


@pytest.mark.parametrize("words", [("-N2-3", "--gpus=2"), ("-N2", "--gpus=2")])
def test_a_range_that_its_user_asked_for_is_kept(site: Site, words: tuple[str, ...]) -> None:  # noqa: F811
    full = leave(site, n1=1, n2=1)
    job = spread(site, *words)
    with site.daemon():
        empty(site, full["n3"])
        ticked(site, 3)
        assert not site.moves()
    assert site.client.job(job.job_id).nodes == job.nodes  # type: ignore[union-attr]


def test_a_forged_range_gives_its_user_no_other_number_of_nodes_and_harms_nobody(site: Site) -> None:  # noqa: F811
    full = leave(site, n1=1, n2=1)
    liar = forged(site, "pal:job=A;from=me;mov=1;lost=1;app=1;n=1-", "-N2-2", "--gpus=2")
    assert site.running(liar).nodes == ("n1", "n2")
    with site.daemon():
        empty(site, full["n3"])
        again = site.running(liar, restarts=1)  # Slurm keeps to the request that it has stored
        assert len(again.nodes) == 2 and sum(map(len, again.gpus.values())) == 2
        assert site.ended().outcome == "elsewhere"
        ticked(site, 2)
        others = [site.client.job(number) for name, number in full.items() if name != "n3"]
        assert all(job is not None and (job.state, job.restarts) == ("RUNNING", 0) for job in others)
        # Requeued again, it waits for no list of ours.
        site.client.requeue(liar)
        site.until(liar, lambda job: job.restarts == 2 and not job.req_nodes)


@pytest.mark.parametrize("words", [(), ("-N1-4",)])
def test_a_pending_job_on_an_open_number_of_nodes_is_steered(site: Site, words: tuple[str, ...]) -> None:  # noqa: F811
    full = leave(site)
    number = site.palsub("--pal-movable", "--gpus=2", *words)
    asked = site.until(number, lambda job: job.reason == "Resources").raw["NumNodes"]
    assert asked == ("1-2" if words else "1")  # on no more nodes than GPUs
    with site.daemon():
        kept_off = site.until(number, lambda job: job.exc_nodes == ("n0",))  # the slow ones, in advance
        assert kept_off.raw["NumNodes"] == asked
        empty(site, full["n2"])
        assert site.running(number).nodes == ("n2",)


def ends_soon(made: Site, full: dict[str, int], limit_min: int) -> None:
    """Jobs that end soon are worth a wait."""
    for number in full.values():
        made.run("scontrol", "update", f"JobId={number}", f"TimeLimit={limit_min}")


def test_a_job_wider_than_a_node_waits_for_good_gpus(site: Site) -> None:  # noqa: F811
    full = leave(site)
    ends_soon(site, full, 10)
    number = site.palsub("--pal-movable", "--gpus=3")
    with site.daemon():
        site.until(number, lambda job: job.exc_nodes == ("n0",))
        for name in ("n0", "n1"):  # on these it would start, but for the list
            empty(site, full[name])
        ticked(site, 2)
        waits = site.client.job(number)
        assert waits is not None and (waits.state, waits.exc_nodes) == ("PENDING", ("n0",))
        empty(site, full["n2"])
        assert site.running(number).nodes == ("n1", "n2")


def test_a_job_wider_than_a_node_takes_slow_gpus_when_waiting_no_longer_pays(site: Site) -> None:  # noqa: F811
    full = leave(site)
    ends_soon(site, full, 1)
    number = site.palsub("--pal-movable", "--gpus=3", "-t", "1")
    with site.daemon():
        site.until(number, lambda job: job.exc_nodes == ("n0",))
        for name in ("n0", "n1"):
            empty(site, full[name])
        job = site.running(number)
        assert job.nodes == ("n0", "n1") and not job.exc_nodes
        body = json.loads(site.run(*PAL, "explain", str(number), "--json"))
        assert [event["what"] for event in body["story"] if event["what"] in ("exclude", "clear")] == [
            "exclude",
            "clear",
        ]


def test_a_list_never_shrinks_a_job_that_has_started_meanwhile(site: Site) -> None:  # noqa: F811
    full = leave(site, n1=1, n2=1)
    job = spread(site, "--gpus=2")
    guard = {"Partition": f"{job.partition},{job.partition}"}
    with pytest.raises(SlurmError):
        queue_of.updated(site.client, job.job_id, ReqNodeList="n1", **guard)
    now = site.client.job(job.job_id)
    assert now is not None and now.nodes == ("n1", "n2") and sum(map(len, now.gpus.values())) == 2
    waits = site.palsub("--pal-movable", "-N1-3", "--gpus=2")
    site.until(waits, lambda one: one.reason == "Resources")
    before = site.client.job(waits)
    queue_of.updated(site.client, waits, ReqNodeList="n3", **guard)
    named = site.client.job(waits)
    assert before is not None and named is not None and named.req_nodes == ("n3",)
    assert named.raw["NumNodes"] == before.raw["NumNodes"] == "1-2"  # on no more nodes than GPUs
    assert (named.partition, named.priority) == (before.partition, before.priority)
    empty(site, full["n3"])
    assert site.running(waits).nodes == ("n3",)


def test_after_a_requeue_slurm_shows_the_range_no_more_and_the_mark_does(site: Site) -> None:  # noqa: F811
    leave(site, n1=1, n2=1)
    job = spread(site, "-N1-3", "--gpus=2")
    asked = request_of(job, gather=True)
    assert request_of(job).leave and (asked.nodes_min, asked.nodes_max) == (1, 3)
    site.client.requeue(job.job_id)
    again = site.until(job.job_id, lambda one: one.state == "PENDING" and not one.nodes)
    asked = request_of(again._replace(reason="Resources"), gather=True)
    # From 24.11 on Slurm shows 2 then: two GPUs are on two nodes at most.
    assert not asked.leave and asked.nodes_min == 1 and asked.nodes_max in (2, 3)
    unmarked = again._replace(reason="Resources", comment=marks.word({marks.JOB: "A", "from": "x"}))
    without = request_of(unmarked, gather=True)
    assert without.leave or (without.nodes_min, without.nodes_max) == (1, 2)  # 22.05 shows no range; later ones do
