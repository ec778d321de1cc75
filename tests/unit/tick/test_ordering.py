# SPDX-License-Identifier: MIT
"""The order of the queue in the tick, over the virtual Slurm: few orders, the users' own values, and no trace left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slurm_pal.base.cluster import Partition
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError
from slurm_pal.decide.place import CHANGED
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import open_journal
from slurm_pal.leases import pinned
from slurm_pal.report import doctor, story
from slurm_pal.report import tick as report
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Completed
from slurm_pal.tick.deciding import Decided
from slurm_pal.tick.ordering import MOST_ORDERS, Ordered, Ordering
from slurm_pal.tick.role import FEATURES, OTHERS, OWN, PLACES, Role
from slurm_pal.tick.tick import TickResult
from slurm_pal.twin.client import VirtualClient
from slurm_pal.twin.room import hardware
from slurm_pal.twin.slurm_settings import PrioritySettings, SlurmSettings
from slurm_pal.twin.virtual_job import VirtualJob
from slurm_pal.twin.virtual_slurm import VirtualSlurm

NOW_S = 1_700_000_000.0
BASIC = SlurmSettings(submit_pass_s=0.0, batch_sched_delay_s=0.0, launch_s=0.0, complete_s=0.0, stop_s=0.0)
FACTORS = BASIC._replace(priority=PrioritySettings(multifactor=True, age=1000, fair_share=500, size=100))
PAIRS = {"PriorityType": "priority/multifactor", "PriorityWeightAge": "1000", "PriorityWeightFairShare": "500",
         "PriorityWeightJobSize": "100"}  # fmt: skip
OPERATOR = Role("operator", "op", frozenset({OWN, OTHERS, PLACES}), ())
MINE = "--comment=pal:job=A;from=default"


class Lengths:
    """Jobs that run for as long as their names say, s."""

    def started(self, job: VirtualJob, now_s: float) -> tuple[float, str]:
        return now_s + float(job.options["job-name"]), "COMPLETED"

    def stopped(self, job: VirtualJob, now_s: float, state: str) -> None:
        """Nothing."""

    def signalled(self, job: VirtualJob, name: str, now_s: float) -> None:
        """Nothing."""


class Site:
    """One node of 4 GPUs, which a job of 1,000 s holds, and the lever."""

    def __init__(self, folder: Path, order: str = "shortest", multifactor: bool = False) -> None:
        self.folder, self.config = folder, Config()
        self.set(order=order)
        partitions = [Partition(name, name == "all", True, ("n0",)) for name in ("all", "other")]
        settings = FACTORS if multifactor else BASIC
        self.slurm = VirtualSlurm(hardware(["n0"], [("",) * 4], [64], [64_000]), partitions, Lengths(), settings, NOW_S)
        self.refused: set[int] = set()
        self.client = VirtualClient(self.slurm, PAIRS if multifactor else {}, self.failing)
        self.journal = open_journal(str(folder / "journal.db"))
        self.log = EventLog(str(folder / "log"), echo=False)
        self.ordering = self.new()
        self.first = self.submit("4", lasts=1000, limit="0:20:00")
        self.pass_s(1)

    def set(self, **values: object) -> None:
        for name, value in values.items():
            self.config.set("rebalance", name, value, "test")

    def failing(self, kind: str, job_id: int) -> SlurmError | None:
        return SlurmError("scontrol failed: Access denied") if kind == "update" and job_id in self.refused else None

    def new(self, role: Role = OPERATOR, stays: bool = True) -> Ordering:
        return Ordering(self.config, self.client, self.journal, role, self.log, stays=stays)

    def submit(self, gpus: str, *words: str, lasts: int = 100, limit: str = "1:00:00", user: str = "u") -> int:
        marked = [] if "unmarked" in words else [MINE]
        words = tuple(word for word in words if word != "unmarked")
        argv = [f"--gpus-per-node={gpus}", f"--job-name={lasts}", f"--time={limit}", *marked, *words]
        return self.client.sbatch(argv, user)

    def pass_s(self, seconds: float) -> None:
        self.slurm.advance(self.slurm.now_s + seconds)

    def decide(self) -> Ordered | None:
        return self.ordering.decide(self.client.overview(marked=True), self.slurm.now_s)

    def tick(self) -> Ordered | None:
        found = self.decide()
        if found is not None:
            assert self.ordering.carry_out(found, self.slurm.now_s) == []
        return found

    def queue(self) -> list[int]:
        return [job.job_id for job in sorted(self.slurm.pending.values(), key=lambda job: (-job.priority, job.job_id))]

    def values(self) -> dict[int, tuple[int, int]]:
        return {number: (job.nice, job.site_factor) for number, job in self.slurm.jobs.items()}

    def logged(self) -> list[Mapping[str, object]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]


@pytest.fixture(params=[False, True], ids=["basic", "multifactor"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, multifactor=request.param)
    with made.journal:
        yield made


def test_the_shortest_jobs_come_first_and_nothing_is_ordered_twice(site: Site) -> None:
    long, middle, short = (site.submit("4", limit=text) for text in ("2-00:00:00", "4:00:00", "0:10:00"))
    assert site.queue() == [long, middle, short]
    found = site.tick()
    assert found is not None and (found.order, found.queue, found.left) == ("shortest", 3, 0)
    assert site.queue() == [short, middle, long]
    orders = site.client.orders
    site.pass_s(15)
    again = site.tick()
    assert again is not None and again.changes == () and site.client.orders == orders
    lever = "SiteFactor" if site.slurm.settings.priority.multifactor else "Nice"
    assert {row["what"] for row in site.logged()} == {"order"} and lever in site.logged()[0]["fields"]  # type: ignore[operator]
    told = story.lines(story.of_journal(site.journal, short))
    assert "order of the queue" in told[0] and "expected to run for 5 min by its limit" in told[0]
    assert "faster" not in told[0]


def test_alike_jobs_are_ordered_by_one_command(site: Site) -> None:
    for _ in range(30):
        site.submit("4")
    orders = site.client.orders
    site.tick()
    assert site.client.orders == orders + 1 and len({value for value in site.values().values()}) == 2


def test_what_one_tick_may_not_order_is_left_for_the_next_and_counted(site: Site) -> None:
    for minutes in range(MOST_ORDERS + 5):
        limit = f"{2**minutes // 60}:{2**minutes % 60:02d}:00" if minutes < 12 else "9:00:00"
        site.submit("4", *([f"--nice={100 + minutes}"] if minutes >= 12 else []), limit=limit)
    first = site.tick()
    assert first is not None
    if site.slurm.settings.priority.multifactor:
        assert first.left == 0
        return
    assert first.left > 0 and len({one.value for one in first.changes}) == MOST_ORDERS
    second = site.tick()
    assert second is not None and second.left == 0 and site.decide().changes == ()  # type: ignore[union-attr]


def test_the_users_own_value_stays_as_the_base_and_comes_back_at_the_start(site: Site) -> None:
    nice = site.submit("4", "--nice=50", limit="0:10:00")
    factor = site.submit("4", limit="0:10:00")
    site.client.update_job(factor, SiteFactor="7")
    site.tick()
    multifactor = site.slurm.settings.priority.multifactor
    assert site.values()[nice][0] == 50 if multifactor else site.values()[nice][0] < 50
    assert site.values()[factor][1] > 7 if multifactor else site.values()[factor][1] == 7
    for number, own in ((factor, (0, 7)), (nice, (50, 0))):
        while site.slurm.jobs[number].state == "PENDING":
            site.pass_s(10)
        assert site.values()[number] != own
        site.tick()
        assert site.values()[number] == own
        assert number not in site.journal.given_places() and site.journal.given_places(number)[number].ended_s
    assert site.journal.given_places() == {}


def test_turned_off_all_places_are_given_back(site: Site) -> None:
    numbers = [site.submit("4", limit=text) for text in ("2:00:00", "0:10:00")]
    site.tick()
    assert site.queue() == numbers[::-1]
    site.set(order="none")
    found = site.tick()
    assert found is not None and found.order == "none" and {one.points for one in found.changes} == {0}
    assert site.queue() == numbers and set(site.values().values()) == {(0, 0)}
    assert site.decide() is None and site.journal.given_places() == {}
    assert site.logged()[-1]["what"] == "order-back"


def test_the_end_of_the_daemon_and_its_guard_give_them_back_too(site: Site) -> None:
    numbers = [site.submit("4", limit=text) for text in ("2:00:00", "0:10:00")]
    site.tick()
    assert site.ordering.take_back(site.slurm.now_s) == [] and site.queue() == numbers
    site.tick()
    assert site.queue() == numbers[::-1]
    known = pinned.remembered(site.journal)  # the daemon was killed
    assert pinned.take_back(site.client, known, site.slurm.now_s, ()).trouble == ()
    assert set(site.values().values()) == {(0, 0)} and site.queue() == numbers
    site.ordering = site.new()  # and starts again: what the guard has done is no word of a user
    site.tick()
    assert site.queue() == numbers[::-1]


def test_a_tick_that_was_killed_between_journal_and_order_is_put_right(site: Site) -> None:
    numbers = [site.submit("4", limit=text) for text in ("2:00:00", "0:10:00")]
    site.refused = set(numbers)
    found = site.decide()
    assert found is not None
    (line,) = set(site.ordering.carry_out(found, site.slurm.now_s))
    assert "Access denied" in line and site.queue() == numbers
    assert set(site.journal.given_places()) >= {numbers[1]}
    site.refused = set()
    site.ordering = site.new()
    site.tick()
    assert site.queue() == numbers[::-1]
    site.set(order="none")
    site.tick()
    assert set(site.values().values()) == {(0, 0)} and site.journal.given_places() == {}


def test_what_somebody_else_has_set_over_ours_is_theirs(site: Site) -> None:
    long, short = (site.submit("4", limit=text) for text in ("2:00:00", "0:10:00"))
    site.tick()
    lever = "SiteFactor" if site.slurm.settings.priority.multifactor else "Nice"
    site.client.update_job(short, **{lever: "-3"})
    site.tick()
    site.pass_s(15)
    found = site.tick()
    assert found is not None and short not in {one.job_id for one in found.changes}
    assert -3 in site.values()[short] and site.journal.given_places()[short].why == CHANGED
    site.set(order="none")
    site.tick()
    assert -3 in site.values()[short] and site.values()[long] == (0, 0)


def test_nothing_is_ordered_where_jobs_wait_that_are_not_ours(site: Site) -> None:
    numbers = [site.submit("4", limit=text) for text in ("2:00:00", "0:10:00")]
    stranger = site.submit("4", "unmarked")
    site.pass_s(1)
    found = site.tick()
    assert found is not None and found.queue == 0 and set(site.values().values()) == {(0, 0)}
    assert len(found.trouble) == 1 and "the queue of all keeps Slurm's order" in found.trouble[0]
    site.slurm.cancel(site.slurm.jobs[stranger])
    assert site.tick().queue == 2 and site.queue() == numbers[::-1]  # type: ignore[union-attr]


def test_earlier_runs_of_a_user_and_name_say_more_than_the_limit(site: Site) -> None:
    site.pass_s(1100)
    for _ in range(3):
        site.submit("4", lasts=60)
        site.tick()
        site.pass_s(30)
        site.tick()
        site.pass_s(40)
        site.tick()
    assert [(row[1], row[2], row[3]) for row in site.journal.runs(0.0)][-1] == ("u", "60", 4)
    site.submit("4", lasts=900, limit="0:20:00")
    site.pass_s(1)
    site.submit("4", lasts=61, limit="0:30:00")
    known = site.submit("4", lasts=60, limit="1-00:00:00")
    for ordering in (site.ordering, site.new()):  # remembered by this process, and by the next one
        site.ordering = ordering
        found = site.tick()
        assert found is not None and site.queue()[0] == known
    assert "its earlier runs" in site.journal.given_places()[known].why


def test_an_overtaken_job_is_in_front_after_the_bound(site: Site) -> None:
    site.set(order_bound_s=300.0)
    long = site.submit("4", lasts=5000, limit="2-00:00:00")
    for _ in range(40):
        site.submit("4", lasts=100, limit="0:05:00")
    seen = []
    while site.slurm.jobs[long].state == "PENDING":
        found = site.tick()
        assert found is not None
        seen.append(found.in_front)
        site.pass_s(15)
        assert site.slurm.now_s < NOW_S + 3000, "the long job starves"
    assert seen[0] == 0 and seen[-1] == 1
    waited_s = site.slurm.jobs[long].start_s - (NOW_S + 1000)  # without the lever it is the next one
    assert 0 < waited_s <= 300 + 100 + 15
    assert site.journal.overtaken().get(long, 0.0) == 0 or site.tick() is not None


@pytest.mark.parametrize(
    ("role", "stays", "line"),
    [
        (Role("user", "u", frozenset({OWN}), ()), True, None),
        (Role("slurm-user", "s", frozenset({OWN, OTHERS, FEATURES, PLACES}), ()), False, "needs a tick that stays"),
    ],
)
def test_who_may_not_or_does_not_stay_orders_nothing(site: Site, role: Role, stays: bool, line: str | None) -> None:
    site.submit("4", limit="2:00:00")
    site.submit("4", limit="0:10:00")
    site.ordering = site.new(role, stays)
    found = site.tick()
    assert (found is None) if line is None else (found is not None and line in found.trouble[0])
    assert set(site.values().values()) == {(0, 0)}


def test_a_plugin_that_sets_site_factors_keeps_them(tmp_path: Path) -> None:
    site = Site(tmp_path, multifactor=True)
    with site.journal:
        site.client = VirtualClient(site.slurm, {**PAIRS, "PrioritySiteFactorPlugin": "site_factor/own"})
        site.ordering = site.new()
        site.submit("4", limit="0:10:00")
        found = site.tick()
        assert found is not None and found.changes == () and "PrioritySiteFactorPlugin" in found.trouble[0]


def test_the_command_line_names_several_jobs_at_once_and_reads_site_factors() -> None:
    asked: list[list[str]] = []

    def run(argv: list[str], stdin: str) -> Completed:
        asked.append(list(argv))
        return Completed(0, "7|5000|\n8|-5|\n 9 | 0 |\nnonsense\n12_[1-3]|4|\n", "")

    client = CliClient(run)  # type: ignore[arg-type]
    client.update_jobs([7, 8], Nice="-512")
    client.update_jobs([], Nice="1")
    assert client.site_factors() == {7: 5000, 8: -5, 9: 0}
    assert asked == [["scontrol", "update", "JobId=7,8", "Nice=-512"], ["sprio", "-h", "-o", "%i|%S|"]]


def test_reports_call_it_the_order_of_the_queue(site: Site) -> None:
    numbers = [site.submit("4", limit=text) for text in ("2:00:00", "0:10:00")]
    found = site.decide()
    seen = TickResult(NOW_S, False, "", 0.1, 2, 0, 0, None, Decided(), 0, (), found)
    text = report.lines(seen)
    assert "Order of the queue: shortest first; 2 jobs, 0 in front after waiting, 2 changes" in text
    assert not any("faster" in line for line in text)
    body = report.as_json(seen)["order"]
    assert (body["order"], body["queue"], body["left"]) == ("shortest", 2, 0)
    assert {row["job_id"] for row in body["changes"]} == {*numbers} and body["changes"][0]["own"] == 0
    rows = [row for row in report.csv_rows(seen) if row["list"] == "order"]
    assert rows[0]["nodes"].startswith(("Nice=-", "SiteFactor=")) and rows[0]["job_id"] == numbers[1]
    assert report.as_json(seen._replace(ordered=None))["order"] is None


def test_the_doctor_says_where_nobody_keeps_the_order(site: Site) -> None:
    site.submit("4", limit="0:10:00")
    site.tick()
    site.journal.ticked(NOW_S)
    (fine,) = doctor.order_of_queue(site.config, site.journal, 60.0, NOW_S + 30)
    (left,) = doctor.order_of_queue(site.config, site.journal, 60.0, NOW_S + 90)
    assert fine.level == "ok" and "1 jobs have a place" in fine.text
    assert left.level == "warn" and "--withdraw" in left.mend
    site.set(order="none")
    site.tick()
    assert doctor.order_of_queue(site.config, site.journal, 60.0, NOW_S + 90) == []
