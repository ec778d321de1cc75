# SPDX-License-Identifier: MIT
"""One tick on a fake Slurm: what it does, what it leaves alone, and what it does when something is amiss."""

from __future__ import annotations

import gc
import importlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from slurm_pal.base import marks
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide import lease as leases
from slurm_pal.decide.aside import OF_ONE_USER
from slurm_pal.journal import story
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import open_journal
from slurm_pal.publisher.publication import Publisher
from slurm_pal.report import tick as report
from slurm_pal.sensitivity import observed
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Completed
from slurm_pal.slurm.counted import Counted
from slurm_pal.slurm.fake import FakeJob, FakeNode, FakeSlurm
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import GpuScore
from slurm_pal.tick import steered
from slurm_pal.tick.role import Role
from slurm_pal.tick.tick import Tick, TickResult

START_S = 1_700_000_000.0
INTERVAL_S = 15.0
HOUR_S = 3600.0
MOVABLE = "pal:job=A;from=x;mov=1;app=1"
ALL = Role("slurm-user", "slurm", frozenset({"own", "others", "admin-comment", "features", "weights"}), ())


class Site:
    """A fake cluster of one slow node (n0) and fast ones, its clock, and ticks of one process."""

    def __init__(self, folder: Path, role: Role = ALL, act: bool = True, fast: int = 1) -> None:
        self.folder, self.now_s = folder, START_S
        names = [f"n{i}" for i in range(fast + 1)]
        self.slurm = FakeSlurm([FakeNode(name) for name in names], clock=lambda: self.now_s)
        self.config = Config()
        self.set("paths", state_dir=str(folder), spool=str(folder / "spool"))
        self.set("rebalance", minimum_s=0.0)
        self.write_scores({name: 1.5 if name == "n0" else 1.0 for name in names})
        self.counted = Counted(self._run)
        self.client = CliClient(self.counted)
        self.busy = ""
        self.journal = open_journal(str(folder / "rebalance.db"))
        self.log = EventLog(str(folder / "log"), echo=False)
        self.role, self.act = role, act
        self.tick = self.new_tick()

    def _run(self, argv: Sequence[str], stdin: str) -> Completed:
        if argv[0] == "sdiag" and self.busy:
            return Completed(0, self.busy, "")
        done = self.slurm(argv, stdin)  # whoever runs the tests is SlurmUser
        return done._replace(stdout=done.stdout.replace("= root(0)", f"= me({os.geteuid()})"))

    def set(self, section: str, **values: object) -> None:
        for name, value in values.items():
            self.config.set(section, name, value, "test")

    def write_scores(self, slowdown: dict[str, float]) -> None:
        gpus = [
            GpuScore(name, k, f"{name}-{k}", "m", {"A": a, "B": 1.0, "C": 1.0},
                     {"A": "v0" if a == 1.0 else "v1", "B": "v0", "C": "v0"}, START_S - 60, 0.9, ())
            for name, a in slowdown.items() for k in range(4)
        ]  # fmt: skip
        levels = {"A": [1.0, 1.5], "B": [1.0], "C": [1.0]}
        path = self.config.snapshot_path
        snapshot.publish(path, gpus, cluster="c", epoch=1, now_s=START_S, centroids=levels)

    def new_tick(self) -> Tick:
        """As a process that has just started."""
        publisher = Publisher(self.config, self.client, stays=self.act) if self.role is ALL else None
        if publisher is not None:
            publisher.known_site(self.now_s)
        return Tick(self.config, self.client, self.counted, self.journal, self.role, publisher, self.log, act=self.act)

    def submit(self, *words: str) -> int:
        return self.client.submit(words, "#!/bin/sh\n")

    def fill(self, *names: str) -> list[int]:
        """Jobs of somebody else on all GPUs of these nodes."""
        return [self.submit("-w", name, "--gres=gpu:4", "-t1") for name in names]

    def job(self, number: int) -> FakeJob:
        return self.slurm.jobs[number]

    def run(self, after_s: float = INTERVAL_S) -> TickResult:
        self.now_s += after_s
        return self.tick.run(self.now_s)

    def see_through(self) -> None:
        for _ in range(200):
            self.now_s += 0.2
            if not self.tick.advance(self.now_s):
                return
        raise AssertionError(self.journal.open_moves())

    def waiting(self) -> int:
        """A class A job that waits while all is full: it is kept off n0 beforehand."""
        self.fill(*self.slurm.nodes)
        return self.submit("--gres=gpu:1", "--comment=mine pal:job=A;from=x")

    def waiting_beside(self) -> int:
        """A class A job that waits for a whole node, with room for single GPUs on each."""
        self.submit("-w", "n1", "--gres=gpu:1", "-t1")
        return self.submit("--gres=gpu:4", "--comment=pal:job=A")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.journal.close()
    made.log.close()


def orders(slurm: FakeSlurm) -> list[list[str]]:
    return [argv for argv in slurm.calls if argv[0] == "scancel" or argv[1:2] in (["update"], ["requeue"])]


# -- advice ----------------------------------------------------------------------------------


def test_advice_plans_and_tells_slurm_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, act=False)
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    seen = site.run()
    assert seen.decided.plan is not None and [move.job_id for move in seen.decided.plan.moves] == [number]
    assert not seen.acted and seen.trouble == () and orders(site.slurm) == [] and seen.orders == 0
    assert not site.tick.advance(site.now_s) and site.journal.last_tick_s() == 0.0
    text = "\n".join(report.lines(seen))
    assert "Advice only" in text and "n0:0 -> n1:0" in text and "1.500 -> 1.000" in text
    assert not (tmp_path / "snapshot.heartbeat").exists()
    site.journal.close()


def test_advice_on_a_journal_that_somebody_else_writes(site: Site) -> None:
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE} pal:it=5;of=100;at={START_S:.0f};r=0")
    with open_journal(site.journal.path, write=False) as journal:
        tick = Tick(site.config, site.client, site.counted, journal, ALL, None, site.log, act=False)
        seen = tick.run(site.now_s)
    assert seen.trouble == () and seen.decided.plan is not None
    assert [move.job_id for move in seen.decided.plan.moves] == [number]


# -- moves -----------------------------------------------------------------------------------


def test_a_job_is_moved_and_the_story_told(site: Site) -> None:
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    others = [site.submit("--gres=gpu:1", "--comment=pal:job=A"), site.submit("--gres=gpu:1")]
    seen = site.run()
    assert seen.trouble == () and seen.moving == 1 and seen.decided.steered is not None
    assert [one.job_id for one in seen.decided.staying] == [others[0]] and seen.decided.steered.foreign == 1
    site.see_through()
    job = site.job(number)
    assert (job.state, job.placed, job.restarts) == ("RUNNING", {"n1": [0]}, 1)
    assert [list(site.job(one).placed) for one in others] == [["n0"], ["n0"]]
    (move,) = site.journal.moves()
    assert (move.outcome, move.before, move.after) == ("moved", 1.5, 1.0)
    assert [event["what"] for event in story.events(job.admin_comment)] == ["move", "moved"]
    again = site.run().decided.plan
    assert again is not None and again.moves == () and site.journal.leases()[number].kind == "move"


def test_a_list_that_palsub_set_is_not_taken_for_its_users(site: Site) -> None:
    """It started on the nodes of a lease: those are not to be asked for beside the target."""
    site.fill("n1")
    mark = leases.comment(60, "", "", "nodelist", "n0")
    number = site.submit("--gres=gpu:1", "-w", "n0", f"--comment={MOVABLE} {mark}")
    site.slurm.finish(1)
    site.run()
    (move,) = site.journal.open_moves()
    assert (move.own_req, move.target) == ("", ("n1",))
    site.see_through()
    assert site.job(number).placed == {"n1": [0]} and site.journal.moves()[0].outcome == "moved"


def test_no_job_leaves_slow_gpus_without_the_lever(site: Site) -> None:
    site.set("rebalance", avoid=False)
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    seen = site.run()
    assert seen.decided.plan is not None and seen.decided.plan.moves == ()
    assert [(one.job_id, "rebalance.avoid is off" in one.why) for one in seen.decided.staying] == [(number, True)]


@pytest.mark.parametrize("fit", [True, False])
def test_waiting_jobs_are_kept_off_slow_gpus_by_that_lever(site: Site, fit: bool) -> None:
    site.set("rebalance", fit=fit)
    number = site.waiting()
    site.run()
    assert site.job(number).exc == ("n0" if fit else "")


def test_a_move_under_way_is_known_to_the_next_plan(site: Site) -> None:
    """Two jobs, room for one: as long as the first is under way nobody else is sent there."""
    site.slurm.completing = 1000
    site.submit("-w", "n1", "--gres=gpu:3")
    site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    site.run()
    site.tick.advance(site.now_s)
    assert len(site.journal.open_moves()) == 1
    for _ in range(3):
        site.run(1.0)
    assert len(site.journal.moves()) == 1


def test_a_new_process_takes_up_what_the_last_one_left(site: Site) -> None:
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    site.run()
    site.tick.advance(site.now_s)
    site.tick = site.new_tick()
    site.see_through()
    assert site.job(number).placed == {"n1": [0]} and site.journal.moves()[0].outcome == "moved"


# -- leases ----------------------------------------------------------------------------------


def test_a_waiting_job_is_kept_off_slow_gpus_until_that_no_longer_pays(site: Site) -> None:
    number = site.waiting()
    seen = site.run()
    assert [wish.action for wish in seen.decided.wishes] == ["exclude"] and site.job(number).exc == "n0"
    assert site.job(number).comment == "mine pal:job=A;from=x"
    site.slurm.finish(1)
    ticks = 0
    while site.job(number).exc:
        assert site.job(number).state == "PENDING" and ticks < 200
        site.run()
        ticks += 1
    assert ticks > 2 and (site.job(number).state, list(site.job(number).placed)) == ("RUNNING", ["n0"])
    assert site.journal.leases() == {}
    assert [event["what"] for event in story.events(site.job(number).admin_comment)] == ["exclude", "clear"]


def test_an_old_mark_of_palsub_does_not_end_a_lease_of_ours(site: Site) -> None:
    site.fill("n0", "n1")
    mark = leases.comment(5, "", "", "exclude", "n0")
    number = site.submit("-x", "n0", "--gres=gpu:1", f"--comment=pal:job=A {mark}")
    for _ in range(3):
        site.run(61.0)
    assert site.job(number).exc == "n0" and site.journal.leases()[number].own == ""
    asked = len(orders(site.slurm))
    for _ in range(3):
        site.run(61.0)
    assert site.job(number).exc == "n0" and len(orders(site.slurm)) == asked


def test_its_users_own_exclusion_survives(site: Site) -> None:
    site.set("rebalance", depth=5)
    fast = FakeNode("n2")
    site.slurm.nodes["n2"] = fast
    site.write_scores({"n0": 1.5, "n1": 1.0, "n2": 1.0})
    site.fill("n0", "n1", "n2")
    number = site.submit("--gres=gpu:1", "-x", "n2", "--comment=pal:job=A")
    site.run()
    assert site.job(number).exc == "n[0,2]" and site.journal.leases()[number].own == "n2"
    assert site.tick.take_back_lists(site.now_s) == []
    assert site.job(number).exc == "n2" and site.journal.leases() == {}


def test_nodes_named_in_vain_are_taken_back_after_one_pass_and_not_at_the_next_tick(site: Site) -> None:
    for name in ("n0", "n1", "n2"):
        site.slurm.nodes[name] = FakeNode(name, full=True)
    number = site.submit("--gres=gpu:1", "--comment=pal:job=A;from=x")
    site.run()
    assert site.job(number).req in ("n1", "n2") and site.job(number).reason == "Resources"
    site.now_s += 1.0
    site.tick.advance(site.now_s)
    assert site.job(number).req  # Slurm has not had its pass
    site.now_s += 3.0
    site.tick.advance(site.now_s)
    assert site.job(number).req == "" and site.journal.leases() == {}
    queries = site.counted.queries
    site.tick.advance(site.now_s + 1.0)
    assert site.counted.queries == queries  # it looks once


def test_nodes_named_in_vain_are_taken_back_once_slurm_takes_the_update(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 24.11 on it may refuse for seconds: Resource temporarily unavailable."""
    for name in ("n0", "n1"):
        site.slurm.nodes[name].full = True
    site.slurm.nodes["n2"] = FakeNode("n2", full=True)
    number = site.submit("--gres=gpu:1", "--comment=pal:job=A;from=x")
    site.run()
    assert site.job(number).req
    busy = Completed(1, "", "slurm_update error: Resource temporarily unavailable\n")
    with monkeypatch.context() as patched:
        patched.setattr(site.slurm, "_update", lambda pairs: busy)
        site.now_s += 4.0
        site.tick.advance(site.now_s)
        assert site.job(number).req and site.journal.leases()
    site.now_s += 1.0
    site.tick.advance(site.now_s)
    assert site.job(number).req == "" and site.journal.leases() == {}


def test_hands_off_a_list_that_somebody_has_changed(site: Site) -> None:
    number = site.waiting()
    site.run()
    site.client.update_job(number, ExcNodeList="n1")
    asked = len(orders(site.slurm))
    for _ in range(3):
        assert site.run().trouble == ()
    assert site.job(number).exc == "n1" and len(orders(site.slurm)) == asked
    assert site.journal.leases() == {} and site.journal.left_alone() == {number}


def test_the_lease_of_a_job_that_is_gone_ends(site: Site) -> None:
    number = site.waiting()
    site.run()
    assert number in site.journal.leases()
    site.client.cancel([number])
    del site.slurm.jobs[number]
    assert site.run().trouble == () and site.journal.leases() == {}
    assert [why for _, why, _ in site.journal.ended_leases(number)] == ["the job has left the queue"]


def test_withdraw_takes_back_lists_features_and_weights(site: Site) -> None:
    site.set("rebalance", features=True, weights=True)
    site.slurm.nodes["n0"].features = "theirs"
    number = site.waiting()
    assert site.run().trouble == ()
    nodes = site.slurm.nodes
    assert nodes["n0"].features == "theirs,pal_A_v1,pal_B_v0,pal_C_v0" and nodes["n0"].weight == 11
    assert site.job(number).exc == "n0" and (site.folder / "snapshot.heartbeat").exists()
    site.tick.stop(site.now_s)
    assert site.tick.withdraw(site.now_s) == [] and site.tick.left() == (0, 0)
    assert (nodes["n0"].features, nodes["n0"].weight, nodes["n1"].features) == ("theirs", 1, "")
    assert site.job(number).exc == "" and not (site.folder / "snapshot.heartbeat").exists()


# -- trouble ---------------------------------------------------------------------------------


def test_without_scores_it_only_looks_and_still_ends_leases(site: Site) -> None:
    number = site.waiting()
    site.run()
    Path(site.config.snapshot_path).unlink()
    seen = site.run()
    assert seen.decided.steered is None and site.job(number).exc == "n0" and len(seen.trouble) == 1
    assert report.lines(seen) == [f"nothing was decided: {seen.trouble[0]}"] and "pal-profile run" in seen.trouble[0]
    site.run(24 * HOUR_S)
    assert site.job(number).exc == "" and site.journal.leases() == {}


@pytest.mark.parametrize("words", ["Server thread count:  64\n", "Agent queue size: 100\n"])
def test_a_busy_slurmctld_is_left_in_peace(site: Site, words: str) -> None:
    number, lists = site.submit("--gres=gpu:1", f"--comment={MOVABLE}"), site.waiting_beside()
    site.run()
    site.see_through()
    site.busy = words
    late = [site.submit(*line, "--comment=" + MOVABLE) for line in (["-w", "n0", "--gres=gpu:1"], ["--gres=gpu:4"])]
    site.client.update_job(late[0], ReqNodeList="n0")
    asked = len(orders(site.slurm))
    seen = site.run(61.0)
    assert "busy" in seen.paused and len(orders(site.slurm)) == asked and "nothing changed: " in report.lines(seen)[0]
    site.run(24 * HOUR_S)
    assert site.job(lists).exc == "" and site.journal.leases().keys() <= {number}
    site.busy = ""
    site.run()
    assert len(orders(site.slurm)) > asked + 1, "there was something to do"


def test_slurmctld_away_is_an_error_and_the_next_tick_goes_on(site: Site) -> None:
    number = site.waiting()
    site.slurm.down = True
    for _ in range(2):
        with pytest.raises(SlurmError):
            site.run()
    site.slurm.down = False
    assert site.run().trouble == () and site.job(number).exc == "n0"


def no_writes(site: Site, wanted: bool = True) -> None:
    site.journal._connection.execute(f"PRAGMA query_only = {'ON' if wanted else 'OFF'}")


def test_a_journal_that_cannot_be_written_lets_nothing_begin(site: Site) -> None:
    site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    lists = site.waiting_beside()
    no_writes(site)
    seen = site.run()
    assert [order for order in orders(site.slurm) if "ReqNodeList" in str(order) or "Exc" in str(order)] == []
    assert seen.moving == 0 and site.job(lists).exc == "" and len(seen.trouble) == 1 and seen.paused
    no_writes(site, False)
    assert site.run().paused == "" and site.job(lists).exc == "n0" and len(site.journal.moves()) == 1


def test_leases_end_while_the_journal_cannot_be_written(site: Site) -> None:
    first = site.waiting()
    second = site.submit("--gres=gpu:1", "--comment=pal:job=A")
    gone = site.submit("--gres=gpu:1", "--comment=pal:job=A")
    site.run()
    assert [site.job(one).exc for one in (first, second)] == ["n0", "n0"]
    del site.slurm.jobs[gone]
    site.slurm.finish(1)
    no_writes(site)
    ticks = 0
    while site.job(first).exc or site.job(second).exc:
        site.run(600.0)
        ticks += 1
        assert ticks < 50
    assert site.journal.leases().keys() == {first, second, gone}
    no_writes(site, False)
    assert site.run().trouble == () and gone not in site.journal.leases()
    del site.slurm.jobs[first], site.slurm.jobs[second]
    site.run()
    assert site.journal.leases() == {}


def test_a_journal_that_is_damaged_is_told_and_nothing_is_done(site: Site) -> None:
    site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    site.run(0.0)
    asked = len(orders(site.slurm))
    Path(site.journal.path).write_bytes(b"no database" * 4000)
    seen = site.run()
    assert seen.moving == 0 and all("damaged" in line for line in seen.trouble) and seen.trouble
    assert len(orders(site.slurm)) == asked
    assert len(site.tick.take_back_lists(site.now_s)) == 1
    with pytest.raises(DataError):
        site.tick.left()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jumps=st.lists(st.sampled_from([1.0, 15.0, 3 * HOUR_S, -2 * HOUR_S, -30.0]), min_size=1, max_size=8))
@example(jumps=[1.0, 1.0, -2 * HOUR_S])  # back, between our update and the start that came with it
def test_a_clock_that_jumps_leaves_nothing_behind(tmp_path_factory: pytest.TempPathFactory, jumps: list[float]) -> None:
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        moved, waits = site.submit("--gres=gpu:1", f"--comment={MOVABLE}"), site.waiting_beside()
        for jump in jumps:
            assert site.run(jump).trouble == ()
            site.tick.advance(site.now_s)
        site.see_through()
        assert site.job(moved).state == "RUNNING" and site.job(waits).state in ("PENDING", "RUNNING")
        site.tick.stop(site.now_s)
        assert site.tick.take_back_lists(site.now_s) == []
        assert site.job(waits).exc == "" and site.job(waits).req == ""
    finally:
        site.journal.close()


def test_all_lists_are_taken_back_though_the_journal_cannot_be_written(site: Site) -> None:
    numbers = [site.waiting(), site.submit("--gres=gpu:1", "--comment=pal:job=A")]
    site.run()
    assert [site.job(one).exc for one in numbers] == ["n0", "n0"]
    assert site.tick.take_back_node_lists(site.now_s) == [] and site.job(numbers[0]).exc == "n0"
    no_writes(site)
    assert len(site.tick.take_back_lists(site.now_s)) == 1
    assert [site.job(one).exc for one in numbers] == ["", ""]


def test_a_clock_set_back_gives_no_waiting_back(site: Site) -> None:
    number = site.waiting()
    site.run()
    site.slurm.finish(1)
    for jump in (INTERVAL_S, INTERVAL_S, -4.0, INTERVAL_S):
        before = site.journal.waited().get(number, 0.0)
        site.run(jump)
        assert site.journal.waited().get(number, 0.0) >= before
    assert before > 0


@pytest.mark.parametrize("pause_s", [10 * HOUR_S, 60.0])
def test_a_pause_between_ticks_is_not_the_time_to_the_next(site: Site, pause_s: float) -> None:
    """No list is set for as long as nobody was there, and only jobs with a list of ours have waited because of us."""
    early = site.waiting()
    site.run()
    for other in (1, 2):
        site.slurm.finish(other)
    assert site.job(early).state == "RUNNING"
    site.job(early).options["time"] = "1"  # so that to wait for its end can pay
    site.fill("n1")
    waits = site.submit("--gres=gpu:4", "--comment=pal:job=A", "-H")
    site.run()
    site.slurm.schedule = lambda: None  # type: ignore[method-assign]
    site.job(waits).reason = "Resources"
    site.run(pause_s)
    (lease,) = [lease for lease in site.journal.leases().values() if lease.job_id == waits]
    expected = INTERVAL_S if pause_s > 900 else pause_s
    assert site.journal.waited()[waits] == expected and lease.kind == "exclude"
    site.run()
    assert site.journal.waited()[waits] == expected + INTERVAL_S
    site.run(pause_s)
    assert site.journal.waited()[waits] == expected + INTERVAL_S + pause_s, "kept off all the time"


def test_an_odd_admin_comment_keeps_nobody_from_anything(site: Site) -> None:
    """What is not to be said again in an update costs that job its story, and nothing else."""
    odd, number = site.waiting(), site.submit("--gres=gpu:1", "--comment=pal:job=A")
    site.job(odd).admin_comment = "site\tcode"
    assert site.run().trouble == () and [site.job(one).exc for one in (odd, number)] == ["n0", "n0"]
    assert site.job(odd).admin_comment == "site\tcode"
    assert site.tick.take_back_lists(site.now_s) == [] and [site.job(one).exc for one in (odd, number)] == ["", ""]


def test_a_job_with_an_odd_admin_comment_is_moved(site: Site) -> None:
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    site.job(number).admin_comment = "site\tcode"
    assert site.run().trouble == ()
    site.see_through()
    assert site.job(number).placed == {"n1": [0]}


# -- cost and numbers ------------------------------------------------------------------------


def test_a_tick_asks_four_times_at_most(site: Site) -> None:
    site.set("rebalance", features=True, weights=True, moves_per_user=4)
    for _ in range(3):
        site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    for after_s in (INTERVAL_S, INTERVAL_S, 61.0):
        seen = site.run(after_s)
        assert 0 < seen.queries <= 4 and seen.trouble == ()
        site.see_through()
    assert len(site.journal.moves()) == 3


def test_leases_of_palsub_cost_one_question(site: Site) -> None:
    site.fill("n0", "n1")
    mark = leases.comment(5, "", "", "nodelist", "n1")
    numbers = [site.submit("-w", "n1", "--gres=gpu:1", f"--comment={mark}") for _ in range(5)]
    seen = site.run(61.0)
    assert [site.job(number).req for number in numbers] == [""] * 5
    assert seen.queries == 5 and seen.trouble == ()  # sdiag, config, two for the look, and the jobs to be freed
    assert site.run(30.0).queries == 2


def test_metrics_can_be_read(site: Site) -> None:
    path = site.folder / "pal.prom"
    site.set("rebalance", metrics=str(path))
    site.waiting()
    site.run()
    families = {family.name: family for family in text_string_to_metric_families(path.read_text())}
    kinds = {sample.labels["kind"]: sample.value for sample in families["pal_leases"].samples}
    assert kinds == {"nodelist": 0, "exclude": 1, "move": 0, "partition": 0, "fence": 0}
    assert families["pal_tick_timestamp_seconds"].samples[0].value == site.now_s
    assert families["pal_paused"].samples[0].value == 0


def test_a_metrics_file_that_cannot_be_written_stops_nothing(site: Site) -> None:
    site.set("rebalance", metrics=str(site.folder / "none" / "pal.prom"))
    number = site.waiting()
    (line,) = site.run().trouble
    assert "metrics" in line and site.job(number).exc == "n0"


def test_json_has_what_the_table_has(site: Site) -> None:
    number = site.submit("--gres=gpu:1", f"--comment={MOVABLE}")
    body = report.as_json(site.run())
    assert [move["job_id"] for move in body["moves"]] == [number] and body["moves"][0]["target"] == ["n1"]
    assert body["acted"] and body["paused"] is None and body["moving"] == 1 and body["trouble"] == []


# -- what nobody foresaw -----------------------------------------------------------------------


def breaking(monkeypatch: pytest.MonkeyPatch, where: str, number: int, kind: type[Exception] = ValueError) -> None:
    """A function of ours that is given a job raises for this one."""
    module, _, name = where.rpartition(".")
    real = getattr(importlib.import_module(f"slurm_pal.{module}"), name)

    def broken(job: SlurmJob, *rest: object, **named: object) -> object:
        if job.job_id == number and job.comment:  # a husk says nothing
            raise kind("of what a user wrote")
        return real(job, *rest, **named)

    monkeypatch.setattr(f"slurm_pal.{module}.{name}", broken)


def whats(site: Site) -> list[str]:
    return [json.loads(line)["what"] for line in (site.folder / "log").read_text().splitlines()]


@pytest.mark.parametrize("kind", [ValueError, RecursionError, MemoryError, ZeroDivisionError])
@pytest.mark.parametrize(
    "where",
    ["tick.steered.is_ours", "tick.steered.request_of", "publisher.observed.uid_of", "decide.lease_marks.marks_of"],
)
def test_a_job_that_breaks_us_is_left_alone_and_all_else_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch, where: str, kind: type[Exception]
) -> None:
    word = observed.word(observed.Observed("A", 0.9, START_S, 60.0, "")) if where == "publisher.observed.uid_of" else {}
    bad = site.waiting()
    if word:
        site.job(bad).comment = marks.put(site.job(bad).comment, word) or ""
    good = site.submit("--gres=gpu:1", "--comment=pal:job=A")
    site.run()
    assert site.job(good).exc == "n0" and (site.job(bad).exc == "n0")
    breaking(monkeypatch, where, bad, kind)
    first = site.run()
    assert first.published is not None and first.published.table is not None
    assert first.decided.steered is not None, first.trouble
    assert any(f"job {bad} is left alone" in line and kind.__name__ in line for line in first.trouble), first.trouble
    assert list(site.journal.broken()) == [bad]
    again = site.run()
    assert not any("internal error" in line for line in again.trouble)
    assert whats(site).count("fault") == 1, "told once"
    assert '"trace": "Traceback' in (site.folder / "log").read_text()
    for _ in range(100):  # its list ends by the journal
        site.run()
        if site.job(bad).exc == "":
            break
    assert site.job(bad).exc == "" and bad not in site.journal.leases()


def test_a_part_that_no_job_explains_fails_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.waiting()
    monkeypatch.setattr("slurm_pal.tick.deciding.retarget", lambda *_: 1 / 0)
    seen = site.run()
    assert any("internal error, ZeroDivisionError" in line for line in seen.trouble)
    assert seen.published is not None and seen.published.table is not None and not site.journal.broken()
    assert (site.folder / "snapshot.heartbeat").exists()


def test_of_a_user_with_many_such_jobs_all_are_set_aside(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.fill(*site.slurm.nodes)
    bad = [site.submit("--gres=gpu:1", "--comment=pal:job=A evil") for _ in range(40)]
    calls = []

    def broken(job: SlurmJob) -> bool:
        calls.append(job.job_id)
        if "evil" in job.comment:
            raise ValueError("of what a user wrote")
        return is_ours(job)

    is_ours = steered.is_ours
    monkeypatch.setattr("slurm_pal.tick.steered.is_ours", broken)
    seen = site.run()
    assert seen.decided.steered is not None and len(site.journal.broken()) == OF_ONE_USER
    assert len(calls) < (OF_ONE_USER + 2) * (len(bad) + len(site.slurm.jobs))


def test_an_order_that_fails_by_a_fault_of_ours_keeps_no_other_from_being_given(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = site.waiting()
    good = site.submit("--gres=gpu:1", "--comment=pal:job=A")
    real = site.client.update_job

    def update(job_id: int, **fields: str) -> None:
        if job_id == bad:
            raise KeyError("of ours")
        real(job_id, **fields)

    monkeypatch.setattr(site.client, "update_job", update)
    seen = site.run()
    assert site.job(good).exc == "n0" and any(f"job {bad}: internal error, KeyError" in line for line in seen.trouble)


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_journal_that_is_taken_away_is_written_anew(site: Site, how: str) -> None:
    number = site.waiting()
    site.run()
    path = site.folder / "rebalance.db"
    path.unlink()
    if how == "replaced":
        path.write_text("somebody else's")
    seen = site.run()
    assert any(f"was {how}: it is" in line for line in seen.trouble)
    with open_journal(str(path), write=False) as journal:
        assert journal.leases().keys() == {number} and journal.last_tick_s() == site.now_s
    assert site.run().trouble == () and site.job(number).exc == "n0"
    assert [p.read_text() for p in site.folder.glob("rebalance.db.aside-*")] == ["somebody else's"] * (
        how == "replaced"
    )


def test_a_long_run_does_not_grow(site: Site) -> None:
    """Hostile words, new at each tick: neither memory nor journal grows with them."""
    site.fill(*site.slurm.nodes)
    numbers = [site.submit("--gres=gpu:1", "--comment=pal:job=A") for _ in range(20)]
    sizes = []
    for turn in range(60):
        for number in numbers:
            site.job(number).comment = f"pal:job=A pal:it={turn * 7919 % 1000};of={turn} pal:lease=x{turn} {'y' * 900}"
        site.run(1.0)
        if turn in (20, 59):
            gc.collect()
            sizes.append((len(gc.get_objects()), (site.folder / "rebalance.db").stat().st_size))
    (before, small), (after, large) = sizes
    assert after < before * 1.1 and large <= small + 3 * 4096
