# SPDX-License-Identifier: MIT
"""Decisions on small clusters, no Slurm and no file in sight."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Counting, Node, Partition
from slurm_pal.base.jobs import Asks, SlurmJob
from slurm_pal.decide.case import Decision, Settings
from slurm_pal.decide.decide import EQUAL, QUEUES, decide
from slurm_pal.decide.request import Request
from slurm_pal.slurm.client import Overview
from slurm_pal.store.snapshot import GpuScore, Snapshot, publish, read
from slurm_pal.submit.argv import parse
from slurm_pal.submit.options import build

from ...doubles.trials import trials

NOW_S = 1_700_000_000.0


def node(name: str, **changes: object) -> Node:
    plain = Node(name, frozenset({"IDLE"}), ("",) * 4, 0, 16, 0, 64000, 0, frozenset(), ("gpu",))
    return plain._replace(**changes)  # type: ignore[arg-type]


def job(job_id: int, gpus: dict[str, tuple[int, ...]], **changes: object) -> SlurmJob:
    plain = SlurmJob(job_id, "RUNNING", "None", "u", "j", "gpu", gpus, tuple(gpus), (), (), 0.0, 0.0, 0.0, 60, 0, "", 1)
    return plain._replace(**changes)  # type: ignore[arg-type]


def cluster(nodes: list[Node], jobs: tuple[SlurmJob, ...] = (), **changes: object) -> Overview:
    names = tuple(n.name for n in nodes)
    plain = Overview(tuple(nodes), jobs, (Partition("gpu", True, True, names),), {})
    return plain._replace(**changes)  # type: ignore[arg-type]


@pytest.fixture
def scores(tmp_path_factory: pytest.TempPathFactory) -> Scores:
    return Scores(str(tmp_path_factory.mktemp("scores") / "snapshot"))


class Scores:
    """Snapshots from {node: slowdowns of its GPUs for class A}; B suffers a third, C nothing."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, table: dict[str, list[float]], models: dict[str, str] | None = None) -> Snapshot:
        kinds, bins = models or {}, {"A": "v0", "B": "v0", "C": "v0"}
        gpus = [
            GpuScore(name, k, f"{name}-{k}", kinds.get(name, "m"), _by_class(a), bins, NOW_S - 60, 0.9, ())
            for name, values in table.items()
            for k, a in enumerate(values)
        ]
        publish(self._path, gpus, cluster="c", epoch=1, now_s=NOW_S, centroids={c: [1.0] for c in "ABC"})
        return read(self._path)


def _by_class(a: float) -> dict[str, float]:
    return {} if math.isnan(a) else {"A": a, "B": 1 + (a - 1) / 3, "C": 1.0}


def request(words: str) -> Request:
    return build(parse([*words.split(), "--wrap", "true"]), {}, None)


def choose(
    words: str,
    overview: Overview,
    snapshot: Snapshot,
    sensitivity: str = "A",
    clearer: str = "watcher",
    measured: bool = False,
    **changes: float | str,
) -> Decision:
    given = Settings(**changes)  # type: ignore[arg-type]
    return decide(request(words), overview, snapshot, sensitivity, given, clearer, NOW_S, measured=measured)


TWO = [node("n0"), node("n1")]
SLOW_FIRST = {"n0": [1.1] * 4, "n1": [0.95] * 4}


def test_a_job_is_pinned_to_faster_gpus_that_are_free_now(scores: Scores) -> None:
    made = choose("--gres=gpu:1", cluster(TWO), scores(SLOW_FIRST))
    assert made.action == "nodelist"
    assert made.added == ("--nodelist=n1",)
    assert made.chosen is not None and made.chosen.gpus[0].gpu == 0
    assert made.plain is not None and made.plain.nodes == ("n0",)
    assert made.alternatives[0].nodes == ("n0",)


def test_the_lease_is_what_waiting_can_pay(scores: Scores) -> None:
    snapshot = scores(SLOW_FIRST)
    made = choose("--gres=gpu:1 -t 60", cluster(TWO), snapshot, expected_run_share=0.5)
    assert made.lease_s == pytest.approx((1.1 - 0.95) * 1800, rel=1e-6)
    assert choose("--gres=gpu:1 -t 60", cluster(TWO), snapshot, lease_max_s=10.0).lease_s == 10.0
    assert choose("--gres=gpu:1 -t 1", cluster(TWO), snapshot, lease_pass_s=7.0).lease_s == 7.0
    default = cluster(TWO, partitions=(Partition("gpu", True, True, ("n0", "n1"), None, 600),))
    assert choose("--gres=gpu:1", default, snapshot).lease_s == pytest.approx((1.1 - 0.95) * 300, rel=1e-6)


def test_what_plain_slurm_would_probably_do_anyway_is_made_sure_of(scores: Scores) -> None:
    snapshot = scores({"n0": [0.9] * 4, "n1": [1.0] * 4})
    made = choose("--gres=gpu:1", cluster(TWO), snapshot)
    assert made.pinned == ("n0",) and "plain Slurm would probably pick the same GPUs" in made.reason
    # Were n0 taken by somebody else, the job would go to n1: that is what waiting is worth.
    assert "(1.000 - 0.900)" in made.lease_why
    without = choose("--gres=gpu:1", cluster(TWO), snapshot, clearer="")
    assert without.action == "none" and "same GPUs" in without.reason and without.added == ()


@pytest.mark.parametrize("a", [[1.0] * 4, [1.04] * 4, [1.002, 1.0, 0.999, 1.0]])
@pytest.mark.parametrize("sensitivity", ["A", "B", "C", "?"])
def test_where_no_gpu_is_faster_than_another_slurm_picks(scores: Scores, a: list[float], sensitivity: str) -> None:
    alike = scores({"n0": a, "n1": a})
    for measured in (False, True):
        made = choose("--gres=gpu:1", cluster(TWO), alike, sensitivity, measured=measured)
        assert (made.action, made.reason, made.added) == ("none", EQUAL, ())
    # Those that differ for class A are not alike for class C either: fast ones are kept for others.
    mixed = scores({"n0": [0.9] * 4, "n1": [1.0] * 4})
    assert choose("--gres=gpu:1", cluster(TWO), mixed, sensitivity, measured=True).action == "nodelist"


def test_where_all_gpus_are_alike_fewer_nodes_are_still_worth_a_list(scores: Scores) -> None:
    held = {"n0": (0, 1), "n1": (0, 1), "n2": (0, 1, 2, 3)}
    nodes = [*(node(name, cpus_used=12, gpus_used=len(gpus)) for name, gpus in held.items()), node("n3")]
    busy = tuple(job(number, {name: gpus}) for number, (name, gpus) in enumerate(held.items(), 1))
    made = choose("--gpus=4", cluster(nodes, busy), scores({one.name: [1.0] * 4 for one in nodes}))
    assert made.plain is not None and made.chosen is not None
    assert (len(made.plain.nodes), len(made.chosen.nodes)) == (2, 1) and made.pinned == ("n3",)


@pytest.mark.parametrize("policy", ["packed", "random"])
def test_rules_without_scores_name_nodes_all_the_same(scores: Scores, policy: str) -> None:
    alike = scores({"n0": [1.0] * 4, "n1": [1.0] * 4})
    assert choose("--gres=gpu:1", cluster(TWO), alike, policy=policy).action == "nodelist"


def test_a_job_that_only_one_node_suits_is_left_as_it_is(scores: Scores) -> None:
    made = choose("--gres=gpu:1 -x n1", cluster(TWO), scores({"n0": [1.0] * 4, "n1": [1.0] * 4}))
    assert made.action == "none" and "no other free GPUs" in made.reason


def test_no_list_when_nothing_is_free(scores: Scores) -> None:
    busy = (job(1, {"n0": (0, 1, 2, 3), "n1": (0, 1, 2, 3)}),)
    full = [n._replace(gpus_used=4) for n in TWO]
    made = choose("--gres=gpu:1", cluster(full, busy), scores(SLOW_FIRST))
    assert made.action == "none" and made.reason == QUEUES


def test_gpus_that_a_pinned_pending_job_will_take_are_not_free(scores: Scores) -> None:
    claim = (job(1, {}, state="PENDING", req_nodes=("n1",), gpus_per_node=4),)
    made = choose("--gres=gpu:1", cluster(TWO, claim), scores(SLOW_FIRST))
    assert made.chosen is not None and made.chosen.nodes == ("n0",)


def test_without_scores_slurm_decides(scores: Scores) -> None:
    nothing = {"n0": [math.nan] * 4, "n1": [math.nan] * 4}
    made = choose("--gres=gpu:1", cluster(TWO), scores(nothing))
    assert made.action == "none" and "score" in made.reason


def test_unknown_gpus_are_named(scores: Scores) -> None:
    made = choose("--gres=gpu:1", cluster(TWO), scores({"n0": [1.4] * 4, "gone": [0.5] * 4}))
    assert made.chosen is not None and made.chosen.nodes == ("n1",)
    assert made.chosen.gpus[0].slowdown is None
    assert any("never measured" in text and "n1:0" in text for text in made.unknown)


@pytest.mark.parametrize(
    ("words", "why"),
    [("--gres=gpu:1 -a 1-9", "array"), ("--gres=gpu:1 -Q", "job id"), ("--gres=gpu:1", "neither a daemon")],
)
def test_without_a_clearer_nothing_hard_is_used(words: str, why: str, scores: Scores) -> None:
    clearer = "" if why == "neither a daemon" else "watcher"
    made = choose(words, cluster(TWO), scores(SLOW_FIRST), clearer=clearer)
    assert made.action == "none" and why in made.reason and made.added == ()
    marked = [n._replace(features=frozenset({f"pal_A_v{i}", "big"})) for i, n in enumerate(TWO)]
    made = choose(words, cluster(marked), scores(SLOW_FIRST), clearer=clearer)
    assert made.action == "prefer" and made.added == ("--prefer=pal_A_v1",) and made.lease_s == 0.0
    made = choose(words + " -C big", cluster(marked), scores(SLOW_FIRST), clearer=clearer)
    assert made.action == "none" and "--constraint" in made.reason


def test_the_users_own_wishes_are_all_kept(scores: Scores) -> None:
    four = [node(f"n{i}", features=frozenset({"new"} if i > 1 else {"old"})) for i in range(4)]
    snapshot = scores({"n0": [0.9] * 4, "n1": [0.8] * 4, "n2": [1.1] * 4, "n3": [1.0] * 4})
    assert choose("--gres=gpu:1 -x n1", cluster(four), snapshot).pinned == ("n0",)
    assert choose("--gres=gpu:1 -C new", cluster(four), snapshot).pinned == ("n3",)
    # Putting his list back would shrink a job that has just started: no nodes are named beside his.
    made = choose("--gres=gpu:1 -N2 -w n2", cluster(four), snapshot)
    assert (made.action, made.added) == ("none", ()) and "own --nodelist" in made.reason
    reserved = cluster(four, reservations={"mine": ("n2", "n3")})
    assert choose("--gres=gpu:1 --reservation=mine", reserved, snapshot).pinned == ("n3",)
    assert "not known" in choose("--gres=gpu:1 --reservation=other", reserved, snapshot).reason
    assert "partition" in choose("--gres=gpu:1 -p nix", cluster(four), snapshot).reason
    assert "constraint" in choose("--gres=gpu:1 -C [a|b]", cluster(four), snapshot).reason


def test_several_partitions_are_compared_but_not_mixed(scores: Scores) -> None:
    nodes = [node(f"n{i}") for i in range(4)]
    parts = (
        Partition("a", True, True, ("n0", "n1")),
        Partition("b", False, True, ("n2", "n3")),
        Partition("down", False, False, ("n0",)),
    )
    snapshot = scores({"n0": [1.1] * 4, "n1": [0.9] * 4, "n2": [1.0] * 4, "n3": [0.95] * 4})
    both = choose("--gres=gpu:1 -p a,b", cluster(nodes, partitions=parts), snapshot)
    assert both.pinned == ("n1",)
    wide = choose("--gres=gpu:4 -N2 -p a,b", cluster(nodes, partitions=parts), snapshot)
    assert wide.chosen is not None and set(wide.chosen.nodes) == {"n2", "n3"}
    assert "partition" in choose("--gres=gpu:1 -p down", cluster(nodes, partitions=parts), snapshot).reason


def test_gpus_of_different_kinds_are_not_compared(scores: Scores) -> None:
    """A slowdown is relative to the same model: the better V100 is still the slower GPU."""
    parts = (Partition("old", False, True, ("n0",)), Partition("new", True, True, ("n1",)))
    snapshot = scores({"n0": [0.9] * 4, "n1": [1.0] * 4}, {"n0": "V100", "n1": "H100"})
    known = choose("-p old,new -N1 --gres=gpu:1", cluster(TWO, partitions=parts), snapshot)
    assert known.action == "none" and "2 models" in known.reason
    assert choose("-p old,new -N1 --gres=gpu:1 -x n1", cluster(TWO, partitions=parts), snapshot).chosen is not None
    typed = [node("n0", gpu_types=("v100",) * 4), node("n1", gpu_types=("v100", "h100", "h100", "h100"))]
    mixed = choose("--gres=gpu:1", cluster(typed), scores(SLOW_FIRST))
    assert mixed.action == "none" and "h100, v100" in mixed.reason
    assert choose("--gres=gpu:h100:1", cluster(typed), scores(SLOW_FIRST)).chosen is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"states": frozenset({"IDLE", "DRAIN"})},
        {"states": frozenset({"IDLE", "PLANNED"})},
        {"states": frozenset({"IDLE", "RESERVED"})},
        {"cpus_used": 14},
        {"memory_used_mib": 60000},
    ],
)
def test_nodes_that_cannot_start_the_job_now_are_passed_over(changes: dict[str, object], scores: Scores) -> None:
    nodes = [node("n0"), node("n1", **changes), node("n2")]
    snapshot = scores({"n0": [1.1] * 4, "n1": [0.8] * 4, "n2": [1.0] * 4})
    made = choose("--gres=gpu:1 -c 4 --mem=8G", cluster(nodes), snapshot)
    assert made.pinned == ("n2",)


def test_sensitive_jobs_are_kept_off_outliers_only_while_that_can_pay(scores: Scores) -> None:
    nodes = [node("n0"), node("n1", gpus_used=4, cpus_used=4)]
    busy = cluster(nodes, (job(1, {"n1": (0, 1, 2, 3)}),))
    snapshot = scores({"n0": [1.5] * 4, "n1": [1.0] * 4})
    made = choose("--gres=gpu:1 -t 60 -x other", busy, snapshot)
    assert made.action == "exclude"
    assert made.added == ("--exclude=other,n0",) and made.excluded == ("other", "n0")
    assert made.lease_s == pytest.approx(0.5 * (1.5 - 1.0) * 1800)
    assert choose("--gres=gpu:1", busy, snapshot, sensitivity="C").action == "none"
    assert choose("--gres=gpu:1", busy, snapshot, clearer="").added == ()
    asleep = [*nodes, node("n2", states=frozenset({"IDLE", "CLOUD", "POWERED_DOWN"}))]
    hidden = cluster(asleep, busy.jobs)
    for seen in (hidden, hidden._replace(nodes=hidden.nodes[:2])):  # without PrivateData=cloud
        made = choose("--gres=gpu:1 -t 60", seen, snapshot)
        assert made.action == "none" and made.added == () and "powered down" in made.reason


@pytest.mark.parametrize(
    ("limits_s", "given", "waits"),
    [
        # Waiting can pay for .5 x 1800 s; a job of that time limit is expected to run half of it.
        ((1790,), 1, True), ((1810,), 1, False), ((7100,) * 4, 1, True), ((7300,) * 4, 1, False),
        ((None, None, None, 60), 1, True), ((None,) * 4, 1, False), ((60,), 0, False),
    ],
)  # fmt: skip
def test_a_job_waits_only_where_better_gpus_become_free_often_enough(
    limits_s: tuple[int | None, ...], given: int, waits: bool, scores: Scores
) -> None:
    nodes = [node("n0"), node("n1", gpus_used=4, cpus_used=4)]
    held = [{"n1": (k,)} if given else {} for k in range(len(limits_s))]
    jobs = tuple(job(k, held[k], nodes=("n1",), time_limit_s=limit_s) for k, limit_s in enumerate(limits_s))
    elsewhere = job(99, {"n2": (0,)}, time_limit_s=1), job(98, {"n1": ()}, state="PENDING", time_limit_s=1)
    snapshot = scores({"n0": [1.5] * 4, "n1": [1.0] * 4})
    made = choose("--gres=gpu:1 -t 60", cluster(nodes, (*jobs, *elsewhere)), snapshot)
    assert made.action == ("exclude" if waits else "none"), made.reason
    assert waits or made.reason == (
        "left to Slurm: only GPUs slower than 1.05 are free, and better ones become free too rarely to wait for them"
    )


def test_outliers_are_taken_when_nothing_better_will_come(scores: Scores) -> None:
    snapshot = scores({"n0": [1.5] * 4, "n1": [1.5] * 4})
    made = choose("--gres=gpu:1", cluster(TWO), snapshot)
    assert made.action == "none" and "no better" in made.reason
    down = [node("n0"), node("n1", states=frozenset({"DOWN"}))]
    made = choose("--gres=gpu:1", cluster(down), scores({"n0": [1.5] * 4, "n1": [1.0] * 4}))
    assert made.action == "none" and "no better" in made.reason


@pytest.mark.parametrize(
    ("words", "other", "expected"),
    [
        ("-c 8", {}, "exclude"), ("-c 8", {"cpus": 7}, "none"), ("--mem=2000", {"memory_mib": 1999}, "none"),
        ("--mem=2000", {"memory_mib": 2000, "memory_used_mib": 2000}, "exclude"), ("-c 16", {}, "exclude"),
        ("-C new", {"features": frozenset({"old"})}, "none"), ("-x n1", {}, "none"), ("-N2", {}, "none"),
        ("--mem-per-cpu=1000", {"memory_mib": 1000}, "exclude"), ("--mem-per-cpu=1000", {"memory_mib": 999}, "none"),
        ("--mem-per-cpu=1000", {"memory_mib": 2000, "threads": 2}, "exclude"),
        ("--mem-per-cpu=1000", {"memory_mib": 1999, "threads": 2}, "none"),
        ("--exclusive --mem-per-cpu=1000", {"memory_mib": 15999}, "none"),
        ("", {"gpu_types": ("",) * 4, "states": frozenset({"DRAIN"})}, "none"),
    ],
)  # fmt: skip
def test_a_job_is_kept_off_outliers_only_where_others_could_hold_it(
    scores: Scores, words: str, other: dict[str, object], expected: str
) -> None:
    """Where none could, Slurm would refuse it: Requested node configuration is not available."""
    nodes = [node("n0", features=frozenset({"new"})), node("n1", gpus_used=4, cpus_used=4)._replace(**other)]  # type: ignore[arg-type]
    busy = cluster(nodes, (job(1, {"n1": (0, 1, 2, 3)}),))
    snapshot = scores({"n0": [1.5] * 4, "n1": [1.0] * 4})
    assert choose(f"--gres=gpu:1 -t 60 {words}", busy, snapshot).action == expected


@pytest.mark.parametrize(
    ("words", "slow", "action"),
    [
        ("--gpus=12", 2, "none"),  # 8 GPUs would be left of 16, and Slurm would refuse the job
        ("--gpus=8", 2, "exclude"), ("--gpus=9", 2, "none"), ("--gpus=12", 1, "exclude"),
        ("--gpus=8 -N2", 2, "exclude"), ("--gpus=8 -N3", 2, "none"), ("--gpus=8 -n 8 -c 4", 2, "exclude"),
        ("--gpus=8 -n 8 -c 5", 2, "none"),
    ],
)  # fmt: skip
def test_a_total_of_gpus_is_kept_off_nodes_only_where_the_others_have_as_many(
    words: str, slow: int, action: str, scores: Scores
) -> None:
    nodes = [node(f"n{i}", gpus_used=4 if i >= slow else 0) for i in range(4)]
    busy = cluster(nodes, tuple(job(i, {f"n{i}": (0, 1, 2, 3)}) for i in range(slow, 4)))
    wide = [n._replace(gpu_types=("",) * 12) if i < slow else n for i, n in enumerate(nodes)]
    snapshot = scores({f"n{i}": [2.0] * 12 if i < slow else [1.0] * 4 for i in range(4)})
    made = choose(f"{words} -t 60", busy._replace(nodes=tuple(wide)), snapshot)
    assert made.action == action, made.reason


OPEN = {"n0": [1.06, 1.0, 1.0, 1.0], "n1": [1.0] * 4, "n2": [1.0] * 4}


def halves() -> Overview:
    """n0 is free; n1 and n2 have two free GPUs each."""
    nodes = [node("n0"), *(node(name, gpus_used=2, cpus_used=2) for name in ("n1", "n2"))]
    return cluster(nodes, (job(1, {"n1": (0, 1), "n2": (0, 1)}),))


@pytest.mark.parametrize("words", ["--gpus=4", "--gpus=4 -t 600"])
def test_a_job_is_not_spread_over_nodes_to_avoid_a_slightly_slow_gpu(words: str, scores: Scores) -> None:
    """Nor is it kept off that GPU: on an open number of nodes Slurm would spread it at once."""
    made = choose(words, halves(), scores(OPEN))
    assert (made.action, made.pinned) == ("nodelist", ("n0",))
    assert made.chosen is not None and made.chosen.product == pytest.approx(1.06, rel=1e-3)
    one_node = choose(f"{words} -N1", halves(), scores(OPEN))
    assert one_node.action == "exclude" and one_node.excluded == ("n0",)


@pytest.mark.parametrize(("words", "named"), [("", 3), ("-n1", 0), ("-n2", 0), ("-n3", 3), ("-n4", 3)])
def test_no_more_nodes_are_named_than_a_job_has_tasks(words: str, named: int, scores: Scores) -> None:
    """sbatch would drop the others, and the job would wait for its GPUs on those that are left."""
    nodes = [node(f"n{i}", gpus_used=2, cpus_used=2) for i in range(4)]
    held = (job(1, {f"n{i}": (0, 1) for i in range(4)}),)
    table = {f"n{i}": [1.0 if i else 1.2] * 4 for i in range(4)}
    made = choose(f"--gpus=6 {words}", cluster(nodes, held), scores(table))
    assert len(made.pinned) == named, made.reason


def test_an_exclusion_names_the_nodes_whose_later_gpus_are_slow(scores: Scores) -> None:
    nodes = [node("n0"), node("n1"), node("n2", gpus_used=4, cpus_used=4)]
    busy = cluster(nodes, (job(1, {"n2": (0, 1, 2, 3)}),))
    made = choose("--gpus=8 -t 20", busy, scores({"n0": [1.0, 1.0, 1.0, 1.5], "n1": [1.0] * 4, "n2": [1.0] * 4}))
    assert (made.action, made.excluded, made.added) == ("exclude", ("n0",), ("--exclude=n0",))
    assert made.lease_s == pytest.approx(0.5 * (1.5 * 1.7 - 1.7) * 600)


def test_why_the_gpus_chosen_are_slower_is_recorded(scores: Scores) -> None:
    """Keeping n0 whole costs 4 parts in 95; up to the bar it may."""
    nodes = [node("n0"), node("n1", gpus_used=3, cpus_used=3)]
    seen = cluster(nodes, (job(1, {"n1": (0, 1, 2)}),))
    table = {"n0": [0.95] * 4, "n1": [1.0] * 3 + [0.99]}
    made = choose("--gres=gpu:1", seen, scores(table))
    assert made.plain is not None and (made.plain.nodes, made.pinned) == (("n0",), ("n1",))
    assert made.slower_why == "GPUs up to 1.05 count as alike, and other nodes stay whole for jobs that need them"
    assert made.reason.endswith(made.slower_why)
    faster = choose("--gres=gpu:1", seen, scores(table | {"n1": [0.9] * 4}))
    assert faster.pinned == ("n1",) and faster.slower_why == ""
    by_packing = choose("--gres=gpu:1", seen, scores(table), policy="packed")
    assert by_packing.slower_why == "the placement rule packed prefers them"


@trials(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from((0.9, 1.0, 1.03, 1.06, 1.3, 2.2)), min_size=4, max_size=4),
            st.integers(0, 4), st.sampled_from((1, 9)),
        ),
        min_size=1, max_size=6,
    ),
    st.sampled_from(
        ("--gpus=1", "--gpus=4", "--gpus=6", "--gpus=3 -n2", "--gres=gpu:2", "--gres=gpu:4 -N2", "--gpus=5 -N2",
         "-n4 --gpus-per-task=1", "--exclusive --gres=gpu:1", "--gpus=2 -N1 -t 600", "--gres=gpu:1 -n3 -N1-3")
    ),
    st.sampled_from("ABC?"),
    st.booleans(),
    st.sampled_from(("watcher", "")),
)  # fmt: skip
def test_no_decision_is_worse_than_plain_slurm_without_a_recorded_reason(
    scores: Scores, rows: list[tuple[list[float], int, int]], words: str, c: str, measured: bool, clearer: str
) -> None:
    nodes, jobs = [], []
    for number, (_, used, weight) in enumerate(rows):
        nodes.append(node(f"n{number}", gpus_used=used, cpus_used=used, weight=weight))
        if used:
            jobs.append(job(number + 1, {f"n{number}": tuple(range(used))}))
    snapshot = scores({f"n{number}": row for number, (row, _, _) in enumerate(rows)})
    made = choose(words, cluster(nodes, tuple(jobs)), snapshot, c, clearer, measured)
    if made.chosen is None or made.plain is None:
        assert made.action == "none"
        return
    ours, plain = made.chosen.product, made.plain.product
    assert ours <= max(plain, 1.05 * made.plain.locality) + 1e-6
    assert (made.slower_why != "") == (ours > plain)
    if made.action == "exclude":  # it waits, since what it could get without those nodes is not free
        assert c != "C" and ours > 1.05 and all(made.excluded)
        later = choose(f"{words} -x {','.join(made.excluded)}", cluster(nodes, tuple(jobs)), snapshot, c)
        assert later.plain is None or later.plain.product <= ours


def test_gpus_of_another_type_are_none_to_wait_for(scores: Scores) -> None:
    nodes = [node("n0", gpu_types=("a",) * 4), node("n1", gpu_types=("a", "b", "b", "b"), gpus_used=4)]
    busy = cluster(nodes, (job(1, {"n1": (0, 1, 2, 3)}),))
    snapshot = scores({"n0": [1.5] * 4, "n1": [1.0] * 4})
    assert choose("--gres=gpu:a:1 -t 60", busy, snapshot).action == "exclude"
    assert choose("--gres=gpu:a:2 -t 60", busy, snapshot).action == "none"


def test_insensitive_single_gpu_jobs_go_to_the_outliers_if_that_was_measured(scores: Scores) -> None:
    snapshot = scores({"n0": [1.0] * 4, "n1": [1.5] * 4})
    assert choose("--gres=gpu:1", cluster(TWO), snapshot, sensitivity="C").pinned == ("n0",)
    made = choose("--gres=gpu:1", cluster(TWO), snapshot, sensitivity="C", measured=True)
    assert made.pinned == ("n1",) and made.lease_s == 3.0  # it gains nothing itself, so it waits for one pass only


@pytest.mark.parametrize(
    ("words", "added"),
    [
        *((words, ("--nodelist=n1",)) for words in ("--gpus=2", "--gpus=1", "--gpus=2 -N1", "-n4 --gres=gpu:1")),
        ("--exclusive", ("--nodelist=n1",)),
        ("--gres=gpu:2 -N1-2", ()),  # two nodes fit, Slurm takes both
    ],
)
def test_the_number_of_nodes_stays_as_open_as_it_was(words: str, added: tuple[str, ...], scores: Scores) -> None:
    assert choose(words, cluster(TWO), scores(SLOW_FIRST)).added == added


def test_exclusive_jobs_score_every_gpu_they_get(scores: Scores) -> None:
    snapshot = scores({"n0": [0.9, 0.9, 0.9, 1.15], "n1": [1.0] * 4})
    made = choose("--exclusive --gres=gpu:1", cluster(TWO), snapshot)
    assert made.pinned == ("n1",) and made.chosen is not None and len(made.chosen.gpus) == 4
    with_cpu_node = [*TWO, node("cpu", gpu_types=())]
    assert "no GPU" in choose("--exclusive", cluster(with_cpu_node), snapshot).reason


def test_a_job_over_nodes_pays_the_locality_penalty(scores: Scores) -> None:
    snapshot = scores({"n0": [1.1] * 4, "n1": [1.0] * 4, "n2": [1.0] * 4})
    made = choose("--gpus=8", cluster([node(f"n{i}") for i in range(3)]), snapshot)
    assert made.chosen is not None and made.chosen.locality == 1.7
    assert made.pinned == ("n1", "n2") and made.added == ("--nodelist=n1,n2",)


def test_what_was_left_by_the_request_stays_left(scores: Scores) -> None:
    assert "start now" in choose("--gres=gpu:1 -H", cluster(TWO), scores(SLOW_FIRST)).reason
    assert "no GPU" in choose("-N1", cluster(TWO), scores(SLOW_FIRST)).reason


def test_nodes_that_the_site_keeps_for_later_are_taken_last(scores: Scores) -> None:
    """Node Weight (slurm.conf(5)): the lowest first, however fast the others are."""
    nodes = [node("n0", weight=10), node("n1", weight=1000), node("n2", weight=10), node("n3", weight=500)]
    snapshot = scores({"n0": [1.04] * 4, "n1": [0.8] * 4, "n2": [1.0] * 4, "n3": [0.9] * 4})
    made = choose("--gres=gpu:1", cluster(nodes), snapshot)
    assert made.pinned == ("n2",) and [offer.nodes for offer in made.alternatives] == [("n0",), ("n3",), ("n1",)]
    wide = choose("--gres=gpu:4 -N3", cluster(nodes), snapshot)
    assert set(wide.pinned) == {"n0", "n2", "n3"}
    slow = scores({"n0": [1.5] * 4, "n1": [0.8] * 4, "n2": [1.5] * 4, "n3": [0.9] * 4})
    kept = choose("--gres=gpu:1 -t 60", cluster(nodes), slow)
    assert kept.action == "none" and "keeps for later" in kept.reason
    busy = [n._replace(gpus_used=4) if n.weight > 10 else n for n in nodes]
    full = (job(1, {"n1": (0, 1, 2, 3), "n3": (0, 1, 2, 3)}),)
    assert choose("--gres=gpu:1 -t 60", cluster(busy, full), slow).action == "exclude"


# -- counted as Slurm counts ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "adds", "left", "startable"),
    [
        ("", {}, {"memory_used_mib": 64000}, True),  # memory is not counted, or nobody knows
        ("", {"memory": True}, {"memory_used_mib": 1}, False),  # without a default a job takes all of a node's
        ("--mem=100", {"memory": True}, {"memory_used_mib": 63900}, True),
        ("-c 4", {"mem_cpu_mib": 1000}, {"memory_used_mib": 60000}, True),
        ("-c 4", {"mem_cpu_mib": 1000}, {"memory_used_mib": 60001}, False),
        ("-c 4 --mem=100", {"mem_cpu_mib": 1000}, {"memory_used_mib": 60001}, True),
        ("", {"mem_node_mib": 4000}, {"memory_used_mib": 60001}, False),
        ("", {"mem_gpu_mib": 2001}, {"memory_used_mib": 60000}, False),
        ("", {"mem_gpu_mib": 2000}, {"memory_used_mib": 60000}, True),
        ("", {"cpus_gpu": 4}, {"cpus_used": 9}, False),
        ("-c 4", {"cpus_gpu": 4}, {"cpus_used": 9}, True),  # the default does not count beside the user's own
        ("--mem=8000", {"most_mem_cpu_mib": 1000}, {"cpus_used": 9}, False),
        ("--mem=7000", {"most_mem_cpu_mib": 1000}, {"cpus_used": 9}, True),
        ("-n 4 -N1", {"one_task_per_core": True}, {"threads": 2, "cpus_used": 10}, False),
        ("-n 4 -N1", {}, {"threads": 2, "cpus_used": 10}, True),
        ("-n 4 -N1 --hint=nomultithread", {}, {"threads": 2, "cpus_used": 10}, False),
        ("-n 4 -N1 --hint=nomultithread", {}, {"threads": 2, "cpus_used": 8}, True),
        ("-n 4 -N1 --threads-per-core=1", {}, {"threads": 2, "cpus_used": 10}, False),
        ("-n 4 -N1 --ntasks-per-core=1", {}, {"threads": 2, "cpus_used": 10}, False),
        ("-n 4 -N1 --ntasks-per-core=2", {}, {"threads": 2, "cpus_used": 10}, True),
        ("-n 2 -N1 -c 3", {}, {"threads": 2, "cpus_used": 10}, False),  # no core has threads of two tasks
        ("-c 3", {"mem_cpu_mib": 1000}, {"threads": 2, "memory_used_mib": 60001}, False),  # a whole core's memory
        ("--hint=memory_bound", {}, {"cpus_used": 1}, False),
        ("--ntasks-per-socket=1", {}, {"cpus_used": 1}, False),
        ("--ntasks-per-socket=1", {}, {}, True),
        ("--gres-flags=enforce-binding", {}, {"cpus_used": 1}, False),
        ("", {"most_cpus": 8}, {}, True),
        ("-c 9", {"most_cpus": 8}, {}, False),
    ],
)
def test_a_job_is_pinned_only_where_slurm_counts_enough(
    words: str, adds: dict[str, int], left: dict[str, object], startable: bool, scores: Scores
) -> None:
    """The fast node n2 is named only where the job would not wait there for CPUs or memory."""
    nodes = [node("n0"), node("n1"), node("n2", **left)]
    parts = (Partition("gpu", True, True, ("n0", "n1", "n2"), counting=Counting(**adds)),)  # type: ignore[arg-type]
    snapshot = scores({"n0": [1.5] * 4, "n1": [1.2] * 4, "n2": [1.0] * 4})
    made = choose(f"--gres=gpu:2 {words}", cluster(nodes, partitions=parts), snapshot)
    assert ("n2" in made.pinned) == startable, made.reason


def test_what_a_partition_may_still_use_of_a_node_is_counted(scores: Scores) -> None:
    """MaxCPUsPerNode: its own jobs count, others' do not."""
    limited = Partition("gpu", True, True, ("n0", "n1"), counting=Counting(most_cpus=8))
    parts = (limited, Partition("cpu", False, True, ("n1",)))
    nodes = [node("n0"), node("n1", cpus_used=6)]
    snapshot = scores({"n0": [1.1] * 4, "n1": [0.9] * 4})
    there = {"nodes": ("n1",), "asks": Asks(cpus=6)}
    own, other = (job(1, {}, partition=name, **there) for name in ("gpu", "cpu"))
    assert choose("--gres=gpu:1 -c 3", cluster(nodes, (own,), partitions=parts), snapshot).pinned == ()
    assert choose("--gres=gpu:1 -c 3", cluster(nodes, (other,), partitions=parts), snapshot).pinned == ("n1",)
    wide = own._replace(nodes=("n0", "n1"), asks=Asks(cpus=10))
    assert choose("--gres=gpu:1 -c 3", cluster(nodes, (wide,), partitions=parts), snapshot).pinned == ("n1",)
    whole = choose("--exclusive --gres=gpu:1", cluster(nodes, partitions=parts), snapshot)
    assert whole.action == "none" and "allows 8 CPUs on a node" in whole.reason


@pytest.mark.parametrize(
    ("words", "free", "startable"),
    [
        ("gpu:1,nvme:2", (("nvme", 2),), True), ("gpu:1,nvme:2", (("nvme", 1),), False), ("gpu:1,nvme", (), False),
        ("gpu:1,nvme", (("nvme", 1),), True), ("vmem:a:4G,gpu:1", (("vmem", 8 << 30), ("vmem:a", 4 << 30)), True),
        ("vmem:a:4G,gpu:1", (("vmem", 8 << 30), ("vmem:a", (4 << 30) - 1)), False),
    ],
)  # fmt: skip
def test_other_resources_than_gpus_are_counted(
    words: str, free: tuple[tuple[str, int], ...], startable: bool, scores: Scores
) -> None:
    many = ("nvme", 4), ("vmem", 64 << 30), ("vmem:a", 64 << 30)
    nodes = [node("n0", others_free=many), node("n1", others_free=free), node("n2", others_free=many)]
    made = choose(f"--gres={words}", cluster(nodes), scores({"n0": [1.1] * 4, "n1": [0.9] * 4, "n2": [1.0] * 4}))
    assert made.pinned == ("n1" if startable else "n2",)
