# SPDX-License-Identifier: MIT
"""Guests that name nodes: what their users require stays listed, what we required for them does not count."""

from __future__ import annotations

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.facts import MoveSettings
from slurm_pal.loans.lend import Lent, LoanMemory, lend, required_by_user
from slurm_pal.loans.terms import LoanTerms
from slurm_pal.slurm.client import Overview

NOW_S = 1_800_000_000.0
TERMS = LoanTerms(("owner",), "guest", headroom=0.0)
OURS = "pal:lease=60;req=;exc=;act=nodelist;set=n2"


def guest(number: int, where: str, required: str = "", comment: str = "", ran_s: float = 100.0) -> SlurmJob:
    return SlurmJob(
        number, "RUNNING", "None", "anna", "train", "guest", {where: (0, 1, 2, 3)}, (where,),
        (required,) if required else (), (), NOW_S - 900, NOW_S - ran_s, 0.0, None, 0, comment, 4, batch=True,
        may_requeue=True, priority=5,
    )  # fmt: skip


def decided(*jobs: SlurmJob, own_req: dict[int, str] | None = None, needed: float = 1.0) -> Lent:
    """Nodes n0 to n3, the owner's n2 and n3, of which one is to be free of guests."""
    nodes = tuple(
        Node(f"n{k}", frozenset({"IDLE"}), ("",) * 4, 0, 16, 0, 1000, 0, frozenset(), ("guest",)) for k in range(4)
    )
    parts = (
        Partition("guest", True, True, tuple(node.name for node in nodes), tier=1, preempt="REQUEUE"),
        Partition("owner", False, True, ("n2", "n3"), tier=10),
    )
    hour = int(NOW_S // 3600)
    known = LoanMemory(demand={hour - k: 0.0 for k in range(1, 5)}, own_req=own_req or {})
    terms = TERMS._replace(headroom=needed / 2)
    return lend(Overview(nodes, jobs, parts, {}), terms, known, MoveSettings(), NOW_S)


def left(lent: Lent) -> list[int]:
    return [one.job.job_id for one in lent.leavers]


def test_a_guest_whose_user_names_its_node_is_not_stopped_in_vain() -> None:
    lent = decided(guest(1, "n2", "n2", ran_s=10.0), guest(2, "n3"))
    assert left(lent) == [2] and "n2" in lent.nodes and "n3" not in lent.nodes, "though 1 would lose less"
    both = decided(guest(1, "n2", "n2"), guest(2, "n3", "n3"), needed=2.0)
    assert left(both) == [] and {"n2", "n3"} <= {*both.nodes}


def test_a_guest_whose_user_excludes_all_others_is_not_stopped_in_vain() -> None:
    only = guest(1, "n2", ran_s=10.0)._replace(exc_nodes=("n0", "n1", "n3"))
    assert left(decided(only, guest(2, "n3"))) == [2]
    ours = only._replace(comment="pal:lease=60;req=;exc=;act=exclude;set=n[0-1,3]")
    assert left(decided(ours, guest(2, "n3"))) == [1]
    assert left(decided(only._replace(exc_nodes=("n3",)), guest(2, "n3"))) == [1], "it may run on n0"


def test_a_list_of_ours_does_not_count() -> None:
    lent = decided(guest(1, "n2", "n2", OURS, ran_s=10.0), guest(2, "n3"))
    assert left(lent) == [1] and "n2" not in lent.nodes
    by_lease = decided(guest(1, "n2", "n2", ran_s=10.0), guest(2, "n3"), own_req={1: ""})
    assert left(by_lease) == [1]


def test_whose_list_is_told_apart() -> None:
    job = guest(1, "n2", "n2")
    assert required_by_user(job, {}) == "n2" and required_by_user(job, {1: "n7"}) == "n7"
    assert required_by_user(job._replace(comment=OURS), {}) == ""
    assert required_by_user(job._replace(comment=OURS, req_nodes=("n3",)), {}) == "n3", "changed since"
