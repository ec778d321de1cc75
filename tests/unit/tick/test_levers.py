# SPDX-License-Identifier: MIT
"""Class features and weights: ours are set, changed and withdrawn, those of others stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Node
from slurm_pal.base.errors import SlurmError
from slurm_pal.journal.journal import Journal, open_journal
from slurm_pal.slurm import parse
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.fake import FakeNode, FakeSlurm
from slurm_pal.store.snapshot import GpuScore, Snapshot, _columns
from slurm_pal.tick import levers
from slurm_pal.tick.levers import FeatureUpdate, WeightUpdate, feature_updates, wanted_features, weight_updates

LEVELS = {"A": [0.95, 1.02, 1.2, 1.5], "B": [1.0], "C": [1.0]}


def node(name: str, available: str = "", gpus: int = 2, weight: int = 1, active: str | None = None) -> Node:
    words = tuple(filter(None, available.split(",")))
    bears = frozenset(words if active is None else filter(None, active.split(",")))
    return Node(name, frozenset({"IDLE"}), ("",) * gpus, 0, 16, 0, 64000, 0, bears, ("gpu",), weight, words)


def snapshot(**classes: Sequence[str]) -> Snapshot:
    """Node -> class for A of each GPU; for B all are v0, for C unknown."""
    rows = [
        GpuScore(name, k, "", "m", {"A": 1.0}, {"A": c, "B": "v0", "C": "?"}, 1.0, 1.0, ())
        for name, each in classes.items()
        for k, c in enumerate(each)
    ]
    return Snapshot({"centroids": LEVELS}, *_columns(rows))


# -- class features --------------------------------------------------------------------------


def test_a_node_bears_the_worst_class_of_its_gpus() -> None:
    scores = snapshot(n0=["v0", "v2"], n1=["v1", "v1"], n2=["v0", "?"], n3=["v0"], n4=["v0", "v0", "v3"])
    nodes = [*(node(f"n{i}") for i in range(6)), node("login", gpus=0)]
    assert wanted_features(nodes, scores) == {
        "n0": {"pal_A_v2", "pal_B_v0"},
        "n1": {"pal_A_v1", "pal_B_v0"},
        "n2": {"pal_B_v0"},  # one GPU of unknown class
        "n3": frozenset(),  # one GPU that was never measured
        "n4": {"pal_A_v0", "pal_B_v0"},  # what Slurm does not hand out does not count
        "n5": frozenset(),
        "login": frozenset(),
    }


def test_nodes_with_the_same_list_go_together_and_others_features_stay_in_order() -> None:
    nodes = [node("n0", "zeta,ib"), node("n1", "zeta,pal_A_v3,ib"), node("n2", "ib,zeta"), node("n3", "pal_A_v1")]
    wanted = {"n0": frozenset({"pal_B_v0", "pal_A_v1"}), "n1": frozenset({"pal_A_v1", "pal_B_v0"})}
    assert feature_updates(nodes, wanted) == [
        FeatureUpdate(("n0", "n1"), "zeta,ib,pal_A_v1,pal_B_v0"),
        FeatureUpdate(("n3",), ""),
    ]


@pytest.mark.parametrize("name", ["pal_A_vX", "pal_D_v0", "xpal_A_v0", "pal_A_v0x", "pal", "pal_A_v"])
def test_only_names_exactly_like_ours_are_ours(name: str) -> None:
    assert feature_updates([node("n0", name)], {}) == []
    assert feature_updates([node("n0", f"{name},pal_A_v1")], {}) == [FeatureUpdate(("n0",), name)]


def test_a_node_whose_others_features_are_not_all_active_is_left_alone_with_a_note() -> None:
    knl = [node("n0", "quad,flat", active="quad"), node("n1", "quad,flat,pal_A_v0", active="quad,pal_A_v0")]
    wanted = {"n0": frozenset({"pal_A_v0"}), "n1": frozenset({"pal_A_v0"})}
    assert feature_updates(knl, wanted) == []
    assert levers.left_alone(knl, wanted) == [
        "node n0 gets no class features: its available and active features differ, which setting both would undo"
    ]
    two = {name: frozenset({"pal_A_v0"}) for name in ("n0", "n2")}
    told = levers.left_alone([node(f"n{i}", "a,b", active="a") for i in range(3)], two)
    assert len(told) == 1 and told[0].startswith("2 nodes (n0, ...) get no class features: ")


def test_ours_that_are_available_but_not_active_are_set_again() -> None:
    assert feature_updates([node("n0", "ib,pal_A_v0", active="ib")], {"n0": frozenset({"pal_A_v0"})}) == [
        FeatureUpdate(("n0",), "ib,pal_A_v0")
    ]
    assert feature_updates([node("n0", "pal_A_v0,pal_A_v1", active="pal_A_v0")], {"n0": frozenset({"pal_A_v0"})}) == [
        FeatureUpdate(("n0",), "pal_A_v0")
    ]


def test_where_the_available_features_are_not_told_nothing_is_written() -> None:
    blind = node("n0")._replace(features=frozenset({"ib"}), available=None)
    assert feature_updates([blind], {"n0": frozenset({"pal_A_v0"})}) == []
    assert "does not show the available features" in levers.left_alone([blind], {"n0": frozenset({"pal_A_v0"})})[0]
    assert levers.left_alone([blind], {}) == []


names = st.sampled_from(["ib", "big", "pal_A_v0", "pal_A_v1", "pal_B_v0", "pal_C_v12", "pal_x"])
lists = st.lists(names, unique=True, max_size=6)


@given(st.lists(st.tuples(lists, st.sets(st.sampled_from(["pal_A_v0", "pal_B_v3"]))), max_size=6))
def test_after_the_updates_each_node_bears_what_is_wanted_and_nothing_else_has_changed(
    cases: list[tuple[list[str], set[str]]],
) -> None:
    nodes = [node(f"n{i}", ",".join(bears)) for i, (bears, _) in enumerate(cases)]
    wanted = {f"n{i}": frozenset(ours) for i, (_, ours) in enumerate(cases)}
    lists = {name: update.features for update in feature_updates(nodes, wanted) for name in update.names}
    after = [node(one.name, lists.get(one.name, ",".join(one.available or ()))) for one in nodes]
    for before, now in zip(nodes, after, strict=True):
        others = [[f for f in one.available or () if not levers.OURS.fullmatch(f)] for one in (before, now)]
        assert others[0] == others[1]
        assert now.features - set(others[0]) == wanted[now.name]
    assert feature_updates(after, wanted) == []
    gone = feature_updates(after, {})
    assert all(not levers.OURS.search(update.features) for update in gone)


def test_available_features_as_slurm_prints_them() -> None:
    line = (
        "NodeName=n0 AvailableFeatures=a,b ActiveFeatures=b Gres=gpu:1 GresUsed=gpu:0 State=IDLE Weight=3 Partitions=p"
    )
    found = parse.node(line)
    assert (found.available, found.features, found.weight) == (("a", "b"), {"b"}, 3)
    assert parse.node(line.replace("=a,b", "=(null)")).available == ()


# -- weights ---------------------------------------------------------------------------------

SCORES = snapshot(n0=["v0", "v1"], n1=["v0", "v2"], n2=["v3", "v2"], n3=["?", "v3"], n4=["v2", "v2"])
BARRED = 1.05


def test_slow_nodes_weigh_more_and_fast_ones_as_the_site_wants() -> None:
    nodes = [node("n0", weight=5), node("n1", weight=5), node("n2"), node("n3"), node("n4", weight=5)]
    assert weight_updates(nodes, SCORES, BARRED, {}) == [
        WeightUpdate(("n1", "n4"), 25, 5),
        WeightUpdate(("n2",), 31, 1),
    ]


def test_a_weight_of_ours_is_known_by_its_base() -> None:
    bases = {"n1": 5, "n2": 1}
    assert weight_updates([node("n1", weight=25), node("n2", weight=31)], SCORES, BARRED, bases) == []
    wiped = [node("n1", weight=5), node("n2", weight=1)]  # reconfigure
    assert weight_updates(wiped, SCORES, BARRED, bases) == [WeightUpdate(("n1",), 25, 5), WeightUpdate(("n2",), 31, 1)]
    changed = [node("n1", weight=7), node("n2", weight=100)]  # the site's new wish
    assert weight_updates(changed, SCORES, BARRED, bases) == [
        WeightUpdate(("n1",), 27, 7), WeightUpdate(("n2",), 130, 100)
    ]  # fmt: skip


def test_a_node_that_is_fast_again_gets_its_weight_back_and_is_forgotten() -> None:
    assert weight_updates([node("n0", weight=25)], SCORES, BARRED, {"n0": 5}) == [WeightUpdate(("n0",), 5, 5)]
    assert weight_updates([node("n3", weight=25)], SCORES, BARRED, {"n3": 5}) == [WeightUpdate(("n3",), 5, 5)]
    # Killed after Slurm was told, or reconfigured: it is still to be forgotten.
    assert weight_updates([node("n0", weight=5)], SCORES, BARRED, {"n0": 5}) == [WeightUpdate(("n0",), 5, 5)]


def test_withdrawal_gives_back_only_what_is_ours() -> None:
    nodes = [node("n0", weight=25), node("n1", weight=31), node("n2", weight=77), node("n3", weight=9)]
    found = levers.withdrawn_weights(nodes, {"n0": 5, "n1": 1, "n2": 1, "gone": 3})
    assert found == [WeightUpdate(("n0",), 5, 5), WeightUpdate(("n1",), 1, 1), WeightUpdate(("n2",), 77, 77)]


class Slurm:
    """Takes updates of nodes; from `fails_at` on it refuses."""

    def __init__(self, weights: dict[str, int], journal: Journal | None = None, fails_at: int = 99) -> None:
        self.weights, self.journal, self.left = weights, journal, fails_at

    def update_nodes(self, names: Sequence[str], **fields: str) -> None:
        if not self.left:
            raise SlurmError("scontrol failed: Unable to contact slurm controller")
        self.left -= 1
        for name in names:
            assert self.journal is None or name in self.journal.weights(), "remembered before it is changed"
            self.weights[name] = int(fields["Weight"])

    def nodes(self) -> list[Node]:
        return [node(name, weight=weight) for name, weight in self.weights.items()]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(str(tmp_path / "rebalance.db")) as opened:
        yield opened


SITE = {"n0": 5, "n1": 5, "n2": 1, "n3": 1, "n4": 5}


def pass_by(slurm: Slurm, journal: Journal, scores: Snapshot = SCORES) -> None:
    levers.set_weights(slurm, journal, weight_updates(slurm.nodes(), scores, BARRED, journal.weights()))  # type: ignore[arg-type]


@pytest.mark.parametrize("fails_at", range(4))
def test_whenever_slurm_goes_away_no_base_is_lost(journal: Journal, fails_at: int) -> None:
    slurm = Slurm(dict(SITE), journal, fails_at)
    try:
        pass_by(slurm, journal)
    except SlurmError:
        slurm.left = 99
        pass_by(slurm, journal)
    slurm.left = 99
    assert slurm.weights == {"n0": 5, "n1": 25, "n2": 31, "n3": 1, "n4": 25}
    assert journal.weights() == {"n1": 5, "n2": 1, "n4": 5}
    levers.set_weights(slurm, journal, levers.withdrawn_weights(slurm.nodes(), journal.weights()))  # type: ignore[arg-type]
    assert slurm.weights == SITE and journal.weights() == {}


steps = st.lists(
    st.one_of(
        st.just("reconfigure"),
        st.just("withdraw"),
        st.dictionaries(
            st.sampled_from(["n0", "n1"]),
            st.lists(st.sampled_from(["v0", "v1", "v2", "v3", "?"]), min_size=2, max_size=2),
        ),
    ),
    max_size=8,
)


@given(steps)
def test_weights_never_drift(
    tmp_path_factory: pytest.TempPathFactory, told: list[str | Mapping[str, list[str]]]
) -> None:
    folder = tmp_path_factory.mktemp("weights", numbered=True)
    site = {"n0": 3, "n1": 20}
    with open_journal(str(folder / "j.db")) as journal:
        slurm = Slurm(dict(site), journal)
        for step in told:
            if step == "reconfigure":
                slurm.weights = dict(site)
            elif step == "withdraw":
                updates = levers.withdrawn_weights(slurm.nodes(), journal.weights())
                levers.set_weights(slurm, journal, updates)  # type: ignore[arg-type]
            elif not isinstance(step, str):
                pass_by(slurm, journal, snapshot(**step))
            assert all(0 <= slurm.weights[name] - base <= 30 for name, base in site.items())
        levers.set_weights(slurm, journal, levers.withdrawn_weights(slurm.nodes(), journal.weights()))  # type: ignore[arg-type]
        assert slurm.weights == site and journal.weights() == {}


# -- through the commands ----------------------------------------------------------------------


def test_where_classes_are_not_published_only_late_features_are_ours() -> None:
    nodes = [node("n0", "ib,pal_A_v0,pal_late_1"), node("n1", "pal_A_v0")]
    wanted = {"n1": frozenset({"pal_late_3"})}
    updates = feature_updates(nodes, wanted, levers.LATE_ONLY)
    assert updates == [FeatureUpdate(("n0",), "ib,pal_A_v0"), FeatureUpdate(("n1",), "pal_A_v0,pal_late_3")]
    assert feature_updates(nodes, {}) == [FeatureUpdate(("n0",), "ib"), FeatureUpdate(("n1",), "")]


def test_features_through_the_commands() -> None:
    client = CliClient(FakeSlurm([FakeNode("n0", features="ib"), FakeNode("n1")]))
    wanted = {"n0": frozenset({"pal_A_v0"}), "n1": frozenset({"pal_A_v1"})}
    levers.set_features(client, feature_updates(client.nodes(), wanted))
    assert [one.available for one in client.nodes()] == [("ib", "pal_A_v0"), ("pal_A_v1",)]
    assert feature_updates(client.nodes(), wanted) == []
    levers.set_features(client, feature_updates(client.nodes(), {}))
    assert [one.available for one in client.nodes()] == [("ib",), ()]
