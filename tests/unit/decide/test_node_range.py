# SPDX-License-Identifier: MIT
"""The user's range of nodes for a total of GPUs: who writes it down, when it is believed, what stays refused."""

from __future__ import annotations

import pytest

from slurm_pal.base import marks
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.job_request import own_range, request_of
from slurm_pal.slurm.job_options import NodeRange
from slurm_pal.submit.argv import parse
from slurm_pal.submit.choice import Moving
from slurm_pal.submit.movable import job_word, own_nodes
from slurm_pal.submit.options import build

from .test_requests import job

TOTAL = "TresPerNode= TresPerJob=gres:gpu:4"
SPREAD = f"{TOTAL} JobState=RUNNING Reason=None NodeList=n[0-1] NumNodes=2 NumCPUs=2 NumTasks=2 TRES=cpu=2,node=2"
AGAIN = f"{TOTAL} Restarts=1 NumNodes=2 NumCPUs=1 NumTasks=1"
"""What 22.05.8 prints of --gpus=4 on two nodes: while it runs, and requeued, with the least number in the TRES."""
OPEN = "of GPUs on an open number of nodes"
RUNS = "how many nodes its GPUs may be spread over is not known while it runs"
RESTARTED = "how many nodes it may have is not known after a restart"
CHANGED = "the number of nodes written down at its submission is not what Slurm shows now"


def marked(changes: str, text: str, admin: str = "") -> SlurmJob:
    return job(changes)._replace(comment=text, admin_comment=admin)


def word(nodes: str) -> str:
    return f"pal:job=A;from=x;n={nodes}"


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        ("--gpus=4", "1-"), ("--gpus=4 -n4", "1-"), ("--gpus=4 -N1-4", "1-4"), ("--gpus=4 -N2", "2-2"),
        ("--gpus-per-task=1 -n4", "1-"), ("--gpus=4 -N1-4 -n2", "1-2"),  # on no more nodes than tasks
        ("--gpus=1", ""), ("--gpus-per-node=2 -N1-4", ""), ("--gres=gpu:2", ""), ("-n2", ""),
        ("--gpus=4 -n4 --ntasks-per-node=2", ""), ("--gpus=4 --switches=1", "1-"), ("--gpus=4 --contiguous", ""),
    ],
)  # fmt: skip
def test_palsub_writes_the_range_of_a_total_down(words: str, nodes: str) -> None:
    request = build(parse([*words.split(), "--wrap", "true"]), {}, None)
    assert own_nodes(request) == nodes
    found = job_word("A", "x", Moving(), nodes=own_nodes(request))
    assert found.get("n", "") == nodes
    shown = marked(SPREAD, marks.word(found))
    assert own_range(shown) == (NodeRange(*marks.read_range(nodes)) if nodes else None)  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "0-1", "1", "4-1", "01-2", "1-4x", "-4", "1-9999999999", "n0", "1-4-5"])
def test_what_we_never_write_is_no_range(text: str) -> None:
    assert marks.read_range(text) is None
    assert own_range(marked(SPREAD, word(text))) is None


def test_what_slurmctld_saw_comes_before_the_user_s_word() -> None:
    admin = "pal:class=A;from=x;act=none;n=2-3;why=open;epoch=1"
    assert own_range(marked(SPREAD, word("1-"), admin)) == NodeRange(2, 3)
    assert own_range(marked(SPREAD, word("1-"), admin.replace("n=2-3;", ""))) == NodeRange(1, None)


@pytest.mark.parametrize(
    ("changes", "nodes", "low", "high"),
    [
        (SPREAD, "1-", 1, None), (SPREAD, "1-4", 1, 4), (SPREAD, "2-2", 2, 2), (AGAIN, "1-4", 1, 4),
        (AGAIN, "1-", 1, None), (AGAIN + " TRES=cpu=1,node=2", "2-3", 2, 3),
        # Until it has started Slurm itself shows it, whatever is written down.
        (TOTAL, "", 1, None), (TOTAL, "2-3", 1, None), (TOTAL + " NumNodes=1-4", "", 1, 4),
        (TOTAL + " NumNodes=2-3 TRES=cpu=1,node=2", "1-", 2, 3),
    ],
)  # fmt: skip
def test_with_the_range_known_such_a_job_may_be_steered(changes: str, nodes: str, low: int, high: int | None) -> None:
    found = request_of(marked(changes, word(nodes)), gather=True)
    assert (found.leave, found.nodes_min, found.nodes_max) == ("", low, high)
    assert found.shape is not None and (found.shape.total, found.shape.per_node) == (4, None)


@pytest.mark.parametrize(
    ("changes", "nodes", "why"),
    [
        (SPREAD, "", RUNS), (AGAIN, "", RESTARTED), (AGAIN.replace("NumNodes=2", "NumNodes=1"), "", RESTARTED),
        (SPREAD, "3-4", CHANGED), (SPREAD, "1-1", CHANGED), (SPREAD, "2-", CHANGED),
        (AGAIN, "2-3", CHANGED),  # Slurm's own least number is 1
        (AGAIN + " TRES=cpu=1,node=2", "1-", CHANGED),  # as somebody would write who asked for 2 nodes
    ],
)  # fmt: skip
def test_what_is_not_known_for_sure_stays_with_slurm(changes: str, nodes: str, why: str) -> None:
    assert request_of(marked(changes, word(nodes)), gather=True).leave == why


@pytest.mark.parametrize(("changes", "why"), [(SPREAD, RUNS), (AGAIN, RESTARTED), (TOTAL, OPEN)])
def test_without_the_setting_all_of_them_stay_with_slurm(changes: str, why: str) -> None:
    assert why in request_of(marked(changes, word("1-"))).leave


def test_other_jobs_are_read_as_before() -> None:
    for changes in ("", "Restarts=1", "NumNodes=2-2 NumTasks=2 TRES=node=2", "JobState=RUNNING NodeList=n1"):
        assert request_of(marked(changes, word("1-9")), gather=True) == request_of(job(changes))
