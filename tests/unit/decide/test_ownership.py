# SPDX-License-Identifier: MIT
"""Whose a list is: one answer, whatever names are in it."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.lease import EXCLUDED, PARTITION, REQUIRED
from slurm_pal.decide.lease_marks import in_force
from slurm_pal.decide.ownership import Whose, names, of_lease, whose
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease

NODES = st.sets(st.sampled_from([f"n{k}" for k in range(6)]))
SOME = st.sets(st.sampled_from([f"n{k}" for k in range(6)]), min_size=1)
JOB = SlurmJob(7, "PENDING", "Resources", "u", "j", "p", {}, (), (), (), 0.0, 0.0, 0.0, None, 0, "", 1)
KINDS = st.sampled_from([kind for kind in LeaseKind if kind is not LeaseKind.FENCE])  # which has no list


def bearing(key: str, found: set[str]) -> SlurmJob:
    """A job with this list, in whatever order Slurm shows it."""
    ordered = tuple(sorted(found, reverse=True))
    if key == PARTITION:
        return JOB._replace(partition=",".join(ordered))
    return JOB._replace(**{"req_nodes" if key == REQUIRED else "exc_nodes": ordered})


def text(kind: LeaseKind, found: set[str]) -> str:
    return ",".join(sorted(found)) if kind is LeaseKind.PARTITION else fold(sorted(found))


def lease(kind: LeaseKind, ours: set[str], own: set[str]) -> TickLease:
    return TickLease(7, kind, text(kind, ours), text(kind, own), 0.0, 0.0, 0, "")


@given(KINDS, SOME, SOME, SOME)
@settings(deadline=None)
def test_a_lease_is_ours_as_long_as_nobody_changes_it(
    kind: LeaseKind, ours: set[str], own: set[str], now: set[str]
) -> None:
    found = of_lease(bearing(kind.key, now), lease(kind, ours, own))
    assert found is (Whose.OWN if now == own else Whose.OURS if now == ours else Whose.OTHER)
    other = {REQUIRED: EXCLUDED, EXCLUDED: REQUIRED, PARTITION: REQUIRED}[kind.key]
    if not own and now and kind is not LeaseKind.PARTITION:  # its other list is another matter
        assert of_lease(bearing(other, now), lease(kind, ours, own)) is Whose.OWN


@given(KINDS, SOME, SOME)
@settings(deadline=None)
def test_what_is_given_back_is_its_users(kind: LeaseKind, ours: set[str], own: set[str]) -> None:
    """To give a list back ends the question, for nodes and partitions alike."""
    made = lease(kind, ours, own)
    back = names(made.own, kind.key)
    assert back is not None and of_lease(bearing(kind.key, set(back)), made) is Whose.OWN
    assert (made.own_req is None) == (kind in (LeaseKind.EXCLUDE, LeaseKind.PARTITION))
    assert (made.own_exc is None) == (kind is not LeaseKind.EXCLUDE)
    assert (kind.sort is Sort.PARTITIONS) == (kind.key == PARTITION)


@given(NODES, NODES, NODES, NODES)
def test_of_several_answers_the_first_holds(now: set[str], own: set[str], ours: set[str], old: set[str]) -> None:
    sets = [frozenset(one) for one in (own, ours, old)]
    found = whose(frozenset(now), sets[0], [sets[1]], [sets[2]])
    order = (Whose.OWN, Whose.OURS, Whose.OLD)
    assert found is next((who for who, one in zip(order, sets, strict=True) if one == now), Whose.OTHER)


@given(st.sampled_from([("nodelist", REQUIRED, "req"), ("exclude", EXCLUDED, "exc")]), SOME, NODES, NODES)
@settings(deadline=None)
def test_a_mark_and_a_lease_say_the_same(
    how: tuple[str, str, str], ours: set[str], own: set[str], now: set[str]
) -> None:
    """What the filter set counts as ours with the user's own names in it, too."""
    action, key, word = how
    mark = {"req": "", "exc": "", word: fold(sorted(own))}
    comment = f"pal:lease=60;req={mark['req']};exc={mark['exc']};act={action};set={fold(sorted(ours))}"
    job = bearing(key, now)._replace(comment=comment)
    kept = in_force(job)
    answers = {of_lease(job, lease(LeaseKind(action), made, own)) for made in (ours, ours | own)}
    assert (kept == {key: fold(sorted(own))}) == (Whose.OURS in answers) and (not kept) == (Whose.OURS not in answers)


def test_what_cannot_be_read_is_nobodys() -> None:
    assert names("n[1-") is None and names("n[1-99999999]") is None
    assert in_force(JOB._replace(req_nodes=("n1",), comment="pal:lease=60;req=n[1-;exc=;act=nodelist;set=n1")) == {}
    assert whose(frozenset({"n1"}), None, [None], [None]) is Whose.OTHER


def test_only_slurms_room_reads_raw_pairs() -> None:
    """What decides is parsed once."""
    root = Path(__file__).parents[3]
    files = [path for top in ("slurm_pal", "cli", "profiling") for path in (root / top).rglob("*.py")]
    readers = {path.parent.name for path in files if re.search(r"\bjob\.raw\b", path.read_text())}
    assert readers == {"slurm"}
