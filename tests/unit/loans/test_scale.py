# SPDX-License-Identifier: MIT
"""How many companions elastic jobs get, and how that is ordered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import Asks, SlurmJob
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import open_journal
from slurm_pal.loans.scale import HELD_BACK_S, SPACING_S, Scaled, ScaleTerms, curve, gpus_of, kind_of, read_range, scale
from slurm_pal.slurm.client import Overview
from slurm_pal.tick.role import OTHERS, OWN, Role
from slurm_pal.tick.scaling import Elastic
from tests.doubles.running_factory import NOW_S, job, node, overview

BASE, TERMS = 10, ScaleTerms(restart_s=60.0)
FOUR = (0, 1, 2, 3)


def base(job_id: int = BASE, where: str = "n0", workers: str = "1:4", **changes: object) -> SlurmJob:
    return job(job_id, {where: FOUR}, comment=f"pal:elastic={workers}", **changes)


def runs(job_id: int, where: str, of: int = BASE, **changes: object) -> SlurmJob:
    return job(job_id, {where: FOUR}, comment=f"pal:companion={of}", **changes)


def waits(job_id: int, of: int = BASE, after_s: float = HELD_BACK_S, **changes: object) -> SlurmJob:
    reason = "BeginTime" if after_s > 0 else "Resources"
    return other(job_id, comment=f"pal:companion={of}", reason=reason, eligible_s=NOW_S + after_s)._replace(**changes)


def other(job_id: int, **changes: object) -> SlurmJob:
    plain = job(job_id, {}, state="PENDING", reason="Resources", gpus_per_node=4, asks=Asks(gpus=True, cpus=4))
    return plain._replace(start_s=0.0, priority=1000, **changes)  # type: ignore[arg-type]


def seen(*jobs: SlurmJob, nodes: int = 4) -> Overview:
    return overview([node(f"n{k}") for k in range(nodes)], jobs)


def scaled(*jobs: SlurmJob, nodes: int = 4, changed_s: Mapping[int, float] = {}, **more: object) -> Scaled:
    return scale(seen(*jobs, nodes=nodes), changed_s, TERMS, NOW_S, **more)  # type: ignore[arg-type]


def test_companions_start_where_gpus_are_free() -> None:
    found = scaled(base(), waits(11), waits(12), waits(13))
    (change,) = found.changes
    assert (change.base, change.workers, change.starts, change.leaves) == (BASE, 4, (11, 12, 13), ())
    assert found.workers == {BASE: 1} and found.waits == ()


def test_no_more_start_than_there_is_room_for() -> None:
    found = scaled(base(), waits(11), waits(12), waits(13), nodes=3)
    assert found.changes[0].starts == (11, 12)


def test_free_gpus_on_several_nodes_are_no_node_for_a_companion() -> None:
    halves = [job(20 + k, {f"n{k}": (0, 1)}) for k in (1, 2, 3)]
    assert scaled(base(), waits(11), *halves).changes == ()


def test_jobs_that_wait_come_first() -> None:
    assert scaled(base(), waits(11), other(20), other(21), other(22)).changes == ()
    (change,) = scaled(base(), waits(11), waits(12), waits(13), other(20)).changes
    assert change.starts == (11, 12)


def test_companions_leave_for_jobs_that_wait_the_newest_first() -> None:
    late = NOW_S - 2 * SPACING_S
    both = [runs(11, "n1", start_s=late - 10), runs(12, "n2", start_s=late), runs(13, "n3", start_s=late - 5)]
    (change,) = scaled(base(), *both, other(20), other(21)).changes
    assert (change.workers, change.starts, change.leaves) == (2, (), (12, 13))
    assert change.why == "other jobs wait for the GPUs"


def test_workers_change_at_most_once_in_ten_minutes() -> None:
    young = [runs(11, "n1", start_s=NOW_S - SPACING_S + 5)]
    assert scaled(base(), *young, other(20), other(21), other(22)).changes == ()
    assert scaled(base(), waits(11), changed_s={BASE: NOW_S - SPACING_S + 5}).changes == ()
    assert scaled(base(), waits(11), changed_s={BASE: NOW_S - SPACING_S - 5}).changes != ()


def test_a_change_must_save_more_than_it_costs() -> None:
    short = base(time_limit_s=7600)  # 400 s are left, of which half are expected
    assert scaled(short, waits(11), nodes=2).changes == ()


def test_the_job_that_gains_most_gets_the_gpus() -> None:
    long, short = base(), base(20, "n1", time_limit_s=4 * 3600)
    (change,) = scaled(long, short, waits(11), waits(21, of=20), nodes=3).changes
    assert change.base == BASE


def test_companions_that_are_not_wanted_wait_on_one_after_the_other() -> None:
    found = scaled(base(), *(other(20 + k) for k in range(3)), waits(11, after_s=10), waits(12, after_s=20))
    assert found.waits == ((11, HELD_BACK_S), (12, 2 * HELD_BACK_S))
    assert scaled(base(), *(other(20 + k) for k in range(3)), waits(11)).waits == ()


def test_a_companion_that_leaves_is_not_let_start_again() -> None:
    late = NOW_S - 2 * SPACING_S
    requeued = waits(12, after_s=121)
    found = scaled(base(), runs(11, "n1", start_s=late), requeued, other(20), nodes=2)
    assert found.changes[0].leaves == (11,) and found.waits == ((12, HELD_BACK_S),)


def test_nobody_scales_the_job_of_another_user() -> None:
    theirs = waits(11, user="mallory")
    found = scaled(base(), theirs)
    assert found == Scaled(workers={BASE: 1})
    assert scaled(base(), waits(11), only_user="somebody") == Scaled()


def test_a_base_job_that_waits_or_is_gone() -> None:
    assert scaled(base()._replace(state="PENDING", gpus={}, nodes=()), waits(11)) == Scaled()
    assert scaled(waits(11), runs(12, "n1")).orphans == ((11, BASE), (12, BASE))


def test_a_companion_that_leaves_for_owners_counts_as_gone() -> None:
    assert scaled(base(), runs(11, "n1"), leaving=frozenset({11})).workers == {BASE: 1}


@pytest.mark.parametrize("text", ["", "2", "0:4", "4:2", "1:1001", "a:b", "1:2:3", "01:2"])
def test_ranges_that_palsub_never_writes(text: str) -> None:
    assert read_range(text) is None
    assert scaled(base(workers=text), waits(11)).changes == ()


@given(
    st.integers(0, 5), st.integers(0, 4), st.integers(0, 3), st.integers(0, 3), st.booleans(), st.integers(0, 3)
)  # fmt: skip
def test_whatever_is_there(others: int, free: int, running: int, pending: int, young: bool, most: int) -> None:
    start_s = NOW_S - (10 if young else 2 * SPACING_S)
    companions = [runs(100 + k, f"n{k + 1}", start_s=start_s) for k in range(running)]
    companions += [waits(200 + k) for k in range(pending)]
    jobs = [base(workers=f"1:{1 + most}"), *companions, *(other(20 + k) for k in range(others))]
    found = scaled(*jobs, nodes=1 + running + free)
    for change in found.changes:
        assert bool(change.starts) != bool(change.leaves)
        assert len(change.starts) <= free and {*change.starts} <= {200 + k for k in range(pending)}
        assert {*change.leaves} <= {100 + k for k in range(running)}
        assert change.workers == 1 + running + len(change.starts) - len(change.leaves) >= 1
        assert not change.starts or change.workers <= 1 + most
        assert not young or not running or not change.leaves or running > most
    assert not {job_id for job_id, _ in found.waits} & {one for change in found.changes for one in change.starts}


def test_gpus_of_a_companion() -> None:
    assert (gpus_of(runs(11, "n1")), gpus_of(waits(12)), gpus_of(job(13, {}))) == (4, 4, 0)


def test_companions_that_may_wait_in_a_partition_that_is_down() -> None:
    pending = waits(11, partition="gpu,down")
    (change,) = scaled(base(), pending, waits(12, partition="gpu,down")).changes
    assert change.starts == (11, 12)


# -- measured scaling ---------------------------------------------------------------------------


def test_a_curve_from_what_was_measured() -> None:
    assert curve({}, 1, 3) == () == curve({2: 5.0}, 1, 3)
    assert curve({1: 10.0, 2: 18.0}, 1, 4) == (10.0, 18.0, 26.0, 34.0)
    assert curve({2: 20.0, 4: 30.0}, 1, 5) == (10.0, 20.0, 25.0, 30.0, 35.0)
    assert curve({1: 10.0, 2: 8.0}, 1, 3) == (10.0, 8.0, 8.0), "more workers than were seen never slow it down further"


def test_a_job_that_does_not_scale_gets_nobody_and_the_other_does() -> None:
    flat, other_kind = base(), base(20, "n1")._replace(name="scales")
    rates = {kind_of(flat): {1: 10.0, 2: 10.1}, kind_of(other_kind): {1: 10.0, 2: 19.0}}
    (change,) = scaled(flat, other_kind, waits(11), waits(21, of=20), rates=rates).changes
    assert change.base == 20


# -- carried out -------------------------------------------------------------------------------


class Client:
    """What the tick asks of Slurm for elastic jobs."""

    def __init__(self, view: Overview, known: Mapping[int, SlurmJob] = {}) -> None:
        self.view, self.known = view, known
        self.orders: list[tuple[str, object, object]] = []
        self.refuses: set[int] = set()

    def overview(
        self, reservations: bool = False, marked: bool = False, whole: frozenset[str] = frozenset()
    ) -> Overview:
        self.orders.append(("overview", marked, whole))
        return self.view

    def jobs_of(self, job_ids: list[int]) -> dict[int, SlurmJob]:
        return {job_id: self.known[job_id] for job_id in job_ids if job_id in self.known}

    def _order(self, name: str, what: object, job_id: int) -> None:
        if job_id in self.refuses:
            raise SlurmError("scontrol failed: Job/step already completing or completed")
        self.orders.append((name, job_id, what))

    def update_job(self, job_id: int, **fields: str) -> None:
        self._order("update", fields, job_id)

    def requeue(self, job_id: int) -> None:
        self._order("requeue", None, job_id)

    def cancel(self, job_ids: list[int]) -> None:
        self.orders.append(("cancel", tuple(job_ids), None))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[Elastic, Client]]:
    client = Client(seen())
    role = Role("slurm-user", "slurm", frozenset({OWN, OTHERS}), ())
    log = EventLog(str(tmp_path / "log"), echo=False)
    with open_journal(str(tmp_path / "j.db")) as journal:
        yield Elastic(Config(), client, journal, role, log), client  # type: ignore[arg-type]


def test_orders_and_what_is_remembered(made: tuple[Elastic, Client]) -> None:
    elastic, client = made
    view = seen(base(), waits(11), waits(12, after_s=5), nodes=2)
    found = elastic.decide(view, None, NOW_S)
    assert found is not None and elastic.carry_out(found, NOW_S) == []
    assert client.orders == [("update", 11, {"StartTime": "now"}), ("update", 12, {"StartTime": "now+600"})]
    later = elastic.decide(view, None, NOW_S + 30)
    assert later is not None and later.changes == (), "its workers were changed half a minute ago"


def test_unknown_jobs_that_wait_are_looked_at_before_anybody_grows(made: tuple[Elastic, Client]) -> None:
    elastic, client = made
    client.view = seen(base(), waits(11), *(other(20 + k) for k in range(3)))
    first = seen(base(), waits(11))._replace(queued=frozenset({("gpu", "Resources")}))
    found = elastic.decide(first, None, NOW_S)
    assert found is not None and found.changes == () and elastic.whole == {"gpu"}
    assert client.orders == [("overview", True, frozenset({"gpu"}))]


def test_orphans_are_cancelled_once_slurm_says_that_the_base_is_gone(made: tuple[Elastic, Client]) -> None:
    elastic, client = made
    view = seen(waits(11), runs(12, "n1"), waits(13, of=30), waits(14, of=31))
    client.known = {30: base(30), 31: base(31, state="COMPLETED")}
    found = elastic.decide(view, None, NOW_S)
    assert found is not None and elastic.carry_out(found, NOW_S) == []
    assert client.orders == [("cancel", (11, 12, 14), None)]


def test_an_order_that_slurm_refuses_is_one_line_and_the_rest_is_done(made: tuple[Elastic, Client]) -> None:
    elastic, client = made
    client.refuses = {11}
    found = elastic.decide(seen(base(), waits(11), waits(12), nodes=3), None, NOW_S)
    assert found is not None
    (line,) = elastic.carry_out(found, NOW_S)
    assert "companion 11 is not let start" in line and client.orders == [("update", 12, {"StartTime": "now"})]


def test_without_companions_nothing_is_asked(made: tuple[Elastic, Client]) -> None:
    elastic, client = made
    assert elastic.decide(seen(base()), None, NOW_S) is None and client.orders == [] and elastic.whole == frozenset()


def test_speed_is_learnt_from_jobs_that_state_their_length(made: tuple[Elastic, Client]) -> None:
    elastic, _ = made

    def tick(at_s: int, iteration: int, *jobs: SlurmJob, of: str = ";of=9000") -> None:
        said = f"pal:elastic=1:4 pal:it={iteration}{of};at={at_s};r=0"
        found = elastic.decide(seen(base()._replace(comment=said), *jobs, waits(12)), None, NOW_S + at_s)
        assert found is not None
        elastic.carry_out(found._replace(changes=(), waits=()), NOW_S + at_s)

    tick(1000, 100)
    tick(1030, 400)  # too soon
    assert elastic._journal.rates() == {}
    tick(1100, 1100)
    assert elastic._journal.rates() == {"u j 4": {1: 10.0}}
    tick(1200, 2100, runs(11, "n1"))  # another size: its speed is not known yet
    tick(1300, 3900, runs(11, "n1"))
    assert elastic._journal.rates() == {"u j 4": {1: 10.0, 2: 18.0}}
    tick(1400, 4900, of="")
    tick(1500, 9999, of="")
    assert elastic._journal.rates() == {"u j 4": {1: 10.0, 2: 18.0}}
