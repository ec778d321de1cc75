# SPDX-License-Identifier: MIT
"""Class features and weights on a real Slurm: set, wiped by a reconfigure, set again, of use, and withdrawn."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.case import Settings
from slurm_pal.journal.journal import Journal, open_journal
from slurm_pal.lab.lab import Lab
from slurm_pal.publisher.standing import standing
from slurm_pal.slurm.cli import CliClient
from slurm_pal.store import snapshot as snapshots
from slurm_pal.store.snapshot import GpuScore, Snapshot
from slurm_pal.tick import levers

from . import queue_of
from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm

PATIENCE_S = 40.0
BARRED = 1.05
WORST = {"n0": 2, "n1": 1, "n2": 0, "n3": 0}
LEVELS = {"A": [0.95, 1.02, 1.5], "B": [1.0]}


class Site:
    """A lab whose nodes have features and weights of the site's own, and a journal."""

    def __init__(self, lab: Lab, home: Path, journal: Journal) -> None:
        self.client, self.journal, self.env = CliClient(), journal, lab.environ()
        rows = [
            GpuScore(name, k, "", "m", {"A": 1.0}, {"A": f"v{worst if k == 3 else 0}", "B": "v0"}, 1.0, 1.0, ())
            for name, worst in WORST.items()
            for k in range(4)
        ]
        path = str(home / "snapshot")
        snapshots.publish(path, rows, cluster="lab", epoch=1, now_s=2.0, centroids=LEVELS)
        self.scores: Snapshot = snapshots.read(path)

    def set_features(self) -> list[levers.FeatureUpdate]:
        nodes = self.client.nodes()
        updates = levers.feature_updates(nodes, levers.wanted_features(nodes, self.scores))
        levers.set_features(self.client, updates)
        return updates

    def set_weights(self) -> list[levers.WeightUpdate]:
        updates = levers.weight_updates(self.client.nodes(), self.scores, BARRED, self.journal.weights())
        levers.set_weights(self.client, self.journal, updates)
        return updates

    def withdraw(self) -> None:
        nodes = self.client.nodes()
        levers.set_features(self.client, levers.feature_updates(nodes, {}))
        levers.set_weights(self.client, self.journal, levers.withdrawn_weights(nodes, self.journal.weights()))

    def reconfigure(self) -> None:
        subprocess.run(["scontrol", "reconfigure"], env=self.env, check=True)
        self.until(lambda: not any("pal_" in feature for node in self.client.nodes() for feature in node.features))

    def until(self, wanted: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not wanted():
            assert time.monotonic() < deadline_s
            time.sleep(queue_of.LOOK_S)

    def run(self, *words: str) -> SlurmJob:
        """A job that has started."""
        number = self.client.submit(["-o", "/dev/null", *words], "#!/bin/sh\nsleep 100\n")
        self.until(lambda: self.client.job_states()[number][0] == "RUNNING")
        job = self.client.job(number)
        assert job is not None
        return job

    def own(self) -> dict[str, tuple[tuple[str, ...] | None, int]]:
        return {node.name: (node.available, node.weight) for node in self.client.nodes()}


@pytest.fixture(scope="module")
def started() -> Iterator[Lab]:
    skip_without_slurm()
    with short_directory() as path, Lab.up(path, nodes=4, gpus=4, seed=1) as lab:
        conf = Path(lab.environ()["SLURM_CONF"])
        text = conf.read_text().replace(" State=UNKNOWN", " Feature=zeta,big Weight=5 State=UNKNOWN")
        assert "ignore_prefer_validation" in text and "Weight=5" in text
        conf.write_text(text)
        subprocess.run(["scontrol", "reconfigure"], env=lab.environ(), check=True)
        yield lab


@pytest.fixture
def site(started: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in started.variables().items():
        monkeypatch.setenv(name, value)
    with open_journal(str(tmp_path / "rebalance.db")) as journal:
        made = Site(started, tmp_path, journal)
        made.until(lambda: all(node.available == ("zeta", "big") for node in made.client.nodes()))
        yield made
        client = made.client
        client.cancel([n for n, (state, _) in client.job_states().items() if state in ("PENDING", "RUNNING")])
        ended = ("PENDING", "RUNNING", "COMPLETING")
        made.until(lambda: not any(state in ended for state, _ in client.job_states().values()))
        made.reconfigure()


THEIRS = (("zeta", "big"), 5)


def test_features_are_set_wiped_set_again_and_withdrawn(site: Site) -> None:
    assert site.own() == dict.fromkeys(WORST, THEIRS)
    first = site.set_features()
    assert [update.names for update in first] == [("n0",), ("n1",), ("n2", "n3")]
    assert site.set_features() == []
    bears = {node.name: (node.available, node.features) for node in site.client.nodes()}
    for name, worst in WORST.items():
        wanted = ("zeta", "big", f"pal_A_v{worst}", "pal_B_v0")
        assert bears[name] == (wanted, frozenset(wanted))
    site.reconfigure()
    assert site.set_features() == first
    site.withdraw()
    assert site.own() == dict.fromkeys(WORST, THEIRS)
    assert not any(feature.startswith("pal_") for node in site.client.nodes() for feature in node.features)


def test_the_filter_prefers_what_the_nodes_bear_and_jobs_land_there(site: Site) -> None:
    site.set_features()
    found = standing(site.client.overview(), site.scores, Settings(barred_slowdown=BARRED), True).prefer
    assert found == {"A": ("pal_A_v0", "pal_A_v1"), "B": ("pal_B_v0",)}
    assert site.run("--gres=gpu:1", "--prefer=pal_A_v0").nodes == ("n2",)
    assert set(site.run("--gres=gpu:4", f"--prefer={'|'.join(found['A'])}").nodes) <= {"n1", "n3"}
    assert site.run("--gres=gpu:4", "--prefer=pal_A_v2").nodes == ("n0",)
    site.withdraw()
    assert site.run("--gres=gpu:1", "--prefer=pal_A_v0").nodes != (), "no waiting for a feature that is gone"


def test_weights_send_plain_jobs_to_the_fast_nodes_and_come_back_after_a_reconfigure(site: Site) -> None:
    assert site.set_weights() == [levers.WeightUpdate(("n0",), 25, 5)]
    assert site.set_weights() == [] and site.journal.weights() == {"n0": 5}
    assert site.run("--gres=gpu:1").nodes == ("n1",)
    site.set_features()
    site.reconfigure()
    assert site.own() == dict.fromkeys(WORST, THEIRS)
    assert site.set_weights() == [levers.WeightUpdate(("n0",), 25, 5)]
    site.withdraw()
    assert site.own() == dict.fromkeys(WORST, THEIRS) and site.journal.weights() == {}


def test_a_node_that_is_down_is_told_too(site: Site) -> None:
    site.client.update_nodes(["n0"], State="DOWN", Reason="test")
    try:
        site.set_features()
        site.set_weights()
        node: Node = site.client.nodes()[0]
        assert "DOWN" in node.states and "pal_A_v2" in node.features and node.weight == 25
    finally:
        site.client.update_nodes(["n0"], State="RESUME")
        site.withdraw()
    site.until(lambda: "IDLE" in site.client.nodes()[0].states)
