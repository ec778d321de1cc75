# SPDX-License-Identifier: MIT
"""The ladder in the tick: state before orders, only what is ours, and nothing without the site's wish."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.cluster import Node
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal.event_log import EventLog
from slurm_pal.slurm import parse
from slurm_pal.slurm.client import Overview
from slurm_pal.store import late
from slurm_pal.store.late import Heard, LateGpu
from slurm_pal.store.snapshot import GpuScore, Snapshot, _columns
from slurm_pal.tick import late_gpus
from slurm_pal.tick.deciding import Decided
from slurm_pal.tick.late_gpus import LateGpus

NOW_S = 1_800_000_000.0
HEARD = (Heard(1, "ada", 1.2, "A", NOW_S), Heard(2, "bob", 1.2, "A", NOW_S))


def node(*states: str, used: int = 0) -> Node:
    return Node("n1", frozenset(states or ("IDLE",)), ("",) * 4, used, 16, 0, 1000, 0, frozenset(), ("gpu",))


class Client:
    """Writes down what it is asked for."""

    def __init__(self) -> None:
        self.orders: list[tuple[object, ...]] = []
        self.reason, self.fails = "", False

    def _order(self, *order: object) -> None:
        self.orders.append(order)
        if self.fails:
            raise SlurmError("no")

    def reserve(self, name: str, where: str, minutes: int, user: str) -> None:
        self._order("reserve", name, where, minutes, user)

    def release(self, name: str) -> None:
        self._order("release", name)

    def node_reason(self, name: str) -> str:
        return self.reason

    def update_nodes(self, names: list[str], **fields: str) -> None:
        self._order("update", *names, fields["State"])


class Site:
    """A tick's ladder, without the measurement that it starts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config, self.client, self.folder = Config(), Client(), folder
        self.config.set("paths", "state_dir", str(folder), "test")
        self.config.set("online", "ladder", "drain", "test")
        self.started: list[str] = []
        monkeypatch.setattr(subprocess, "Popen", self._popen)
        self.log = EventLog(str(folder / "log"), echo=False)
        self.slowdown, self.measured_s = 1.0, NOW_S - 3600.0

    def _popen(self, argv: list[str], env: dict[str, str], **_: object) -> Any:  # noqa: ANN401 - a process
        assert env["SLURM_PAL_PROFILE_RESERVATION"] == "pal_n1"
        self.started.append(argv[-1])

        class Running:
            def poll(self) -> None:
                return None

        return Running()

    def new(self) -> LateGpus:
        return LateGpus(self.config, self.client, self.log, "slurm")  # type: ignore[arg-type]

    def scores(self) -> Snapshot:
        score = GpuScore("n1", 2, "u", "m", {"A": self.slowdown}, {"A": "v0"}, self.measured_s, 1.0, ())
        return Snapshot({}, *_columns([score]))

    def put(self, rung: str, **more: Any) -> None:  # noqa: ANN401 - fields of LateGpu
        late.write(str(self.folder / "late.json"), [LateGpu("n1", 2, "u", rung, NOW_S - 60.0, HEARD)._replace(**more)])

    def known(self) -> LateGpu:
        (one,) = late.read(str(self.folder / "late.json"))
        return one

    def tick(self, *jobs: SlurmJob, after_s: float = 1.0, nodes: Node | None = None, act: bool = True) -> LateGpus:
        made = self.new()
        overview = Overview((nodes or node(),), jobs, (), {})
        assert made.take(overview, Decided(scores=self.scores()), NOW_S + after_s, act) == []
        if act:
            made.carry_out(overview.nodes, NOW_S + after_s)
        return made


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def job(text: str, user: str = "ada", state: str = "RUNNING") -> SlurmJob:
    made = parse.nobodys(7, {"JobState": state})
    return made._replace(user=user, gpus={"n1": (2, 3)}, nodes=("n1",), comment=text)


WORD = f"pal:slow=n1:2;x=1.080;n=480;at={NOW_S:.0f};r=0"


def test_a_job_is_heard_and_the_first_look_only_observes(site: Site) -> None:
    made = site.tick(job(WORD))
    assert (site.known().rung, site.known().heard[0].user, made.news) == ("observe", "ada", True)
    assert site.client.orders == [] and made.features() == {}
    log = [json.loads(line) for line in (site.folder / "log").read_text().splitlines()]
    assert [(row["what"], row["gpu"], row["rung"], row["before"]) for row in log] == [
        ("late-gpu", "n1:2", "observe", "released")
    ]


@pytest.mark.parametrize("one", [
    job(WORD.replace("n1:2", "n1:0")), job(WORD.replace("n1:2", "n2:2")), job(WORD, user=""),
    job(WORD, state="PENDING"), job(WORD.replace("n1:2", "-")), job("pal:slow="),
])  # fmt: skip
def test_what_a_job_cannot_know_is_not_heard(site: Site, one: SlurmJob) -> None:
    site.tick(one)
    assert not (site.folder / "late.json").exists()


def test_a_node_as_a_whole_means_the_jobs_gpus_there(site: Site) -> None:
    site.tick(job(WORD.replace("n1:2", "n1")))
    assert [(one.node, one.index) for one in late.read(str(site.folder / "late.json"))] == [("n1", 2), ("n1", 3)]


@pytest.mark.parametrize("text", ["{", '{"schema": "pal.late/2"}', '{"schema": "pal.late/1", "gpus": [{"node": 1}]}'])
def test_a_file_that_cannot_be_used_is_shown_once_kept_and_written_anew(text: str, site: Site) -> None:
    (site.folder / "late.json").write_text(text)
    overview = Overview((node(),), (job(WORD),), (), {})
    (line,) = site.new().take(overview, Decided(scores=site.scores()), NOW_S, True)
    assert "late.json" in line and f"kept as {site.folder / 'late.json.unread'}" in line
    assert site.known().rung == "observe" and (site.folder / "late.json.unread").read_text() == text
    assert site.new().take(overview, Decided(scores=site.scores()), NOW_S, True) == []


@pytest.mark.parametrize(("reason", "orders"), [
    ("pal: jobs wait for GPU 2, pal-profile show", [("update", "n1", "RESUME")]), ("fan", []), ("pal: jobs wait", []),
])  # fmt: skip
def test_a_drain_of_ours_ends_though_the_file_is_lost(
    reason: str, orders: list[tuple[object, ...]], site: Site
) -> None:
    """Whoever drained for another reason keeps the node."""
    (site.folder / "late.json").write_text("{")
    site.client.reason, made = reason, site.new()
    overview = Overview((node("IDLE", "DRAIN"),), (), (), {})
    made.take(overview, Decided(scores=site.scores()), NOW_S, True)
    assert made.carry_out(overview.nodes, NOW_S) == [] and site.client.orders == orders


@pytest.mark.parametrize("busy", [node("ALLOCATED", used=4), node("IDLE", "DRAIN"), node("IDLE", used=1)])
def test_a_node_is_reserved_only_when_idle(site: Site, busy: Node) -> None:
    site.put("reserve")
    site.tick(nodes=busy)
    assert site.client.orders == [] and not site.known().reserved


def test_it_is_reserved_for_half_an_hour_measured_and_given_back(site: Site) -> None:
    site.put("reserve")
    site.tick()
    assert site.client.orders == [("reserve", "pal_n1", "n1", 30, "slurm")] and site.started == ["n1"]
    assert site.known().reserved
    site.tick(after_s=5.0)
    assert len(site.client.orders) == 1, "not twice"
    site.measured_s = NOW_S + 30.0
    site.tick(after_s=60.0)
    assert site.client.orders[1:] == [("release", "pal_n1")] and site.known().rung == "released"


def test_a_node_is_measured_once_for_all_of_its_late_gpus(site: Site) -> None:
    """Where a run is unconfirmed they all stay, and the next measurement of their node has its time."""
    late.write(str(site.folder / "late.json"), [
        LateGpu("n1", 2, "u", "reserve", NOW_S - 60.0, HEARD, reserved_s=NOW_S - 3600.0),
        LateGpu("n1", 3, "w", "reserve", NOW_S - 60.0, HEARD),
    ])  # fmt: skip
    site.tick()
    assert site.client.orders == [] and site.started == []
    site.tick(after_s=late_gpus.AGAIN_S)
    assert site.client.orders == [("reserve", "pal_n1", "n1", 30, "slurm")]


def test_what_slurm_refuses_is_found_again(site: Site) -> None:
    site.put("released", reserved=True, reserved_s=NOW_S, heard=())
    site.client.fails = True
    site.tick()
    assert site.known().reserved, "state says so until Slurm has done it"
    site.client.fails = False
    site.tick()
    assert site.client.orders == [("release", "pal_n1")] * 2 and not site.known().reserved


def test_a_reservation_that_has_ended_by_itself_is_not_deleted(site: Site) -> None:
    site.put("released", reserved=True, reserved_s=NOW_S - 7200.0, heard=())
    site.tick()
    assert site.client.orders == [] and not site.known().reserved


def test_only_a_drain_of_ours_is_taken_back(site: Site) -> None:
    site.put("drain")
    site.tick(nodes=node("IDLE", "DRAIN"))
    assert site.client.orders == [] and site.known().drained, "somebody else has drained it"
    for reason, orders in (("broken fan", []), (f"{late_gpus.REASON}2", [("update", "n1", "RESUME")])):
        site.put("released", drained=True, heard=())
        site.client.reason, site.client.orders = reason, []
        site.tick(nodes=node("IDLE", "DRAIN"))
        assert site.client.orders == orders and not site.known().drained


def test_a_drain_and_its_end_by_withdrawal(site: Site) -> None:
    site.put("drain")
    site.tick()
    assert site.client.orders == [("update", "n1", "DRAIN")]
    site.client.reason = f"{late_gpus.REASON}2, pal-profile show"
    made = site.new()
    assert made.withdraw([node("IDLE", "DRAIN")], NOW_S) == []
    assert site.client.orders[1:] == [("update", "n1", "RESUME")] and site.known().rung == "observe"


def test_the_lower_wish_of_the_site_takes_it_back(site: Site) -> None:
    site.put("reserve", reserved=True, reserved_s=NOW_S)
    site.config.set("online", "ladder", "observe", "test")
    made = site.tick()
    assert site.client.orders == [("release", "pal_n1")] and made.features() == {} and site.known().rung == "observe"


def test_features_of_late_gpus(site: Site) -> None:
    site.put("annotate")
    assert site.tick().features() == {"n1": frozenset({"pal_late_2"})}
