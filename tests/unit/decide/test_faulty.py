# SPDX-License-Identifier: MIT
"""GPUs that were seen to fail: avoided by every rule, class and part, taken when nothing else will come."""

from __future__ import annotations

import pytest

from slurm_pal.base.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS, GpuShape
from slurm_pal.decide.case import Settings
from slurm_pal.decide.decide import decide
from slurm_pal.moves.survey import Survey
from slurm_pal.placement import POLICIES
from slurm_pal.placement.faulty import FAULTY
from slurm_pal.placement.view import Rule
from slurm_pal.publisher.standing import standing
from slurm_pal.store.snapshot import Snapshot
from slurm_pal.tick.levers import wanted_features, weight_updates

from ...doubles.faulty_gpus import broken
from .test_submit_decide import NOW_S, Scores, choose, cluster, job, node, request, scores  # noqa: F401 - a fixture

THREE = [node("n0"), node("n1"), node("n2")]
EVEN = {"n0": [1.0] * 4, "n1": [1.0] * 4, "n2": [1.0] * 4}
CLASSES = (*SENSITIVITY_CLASSES, UNKNOWN_CLASS)


@pytest.fixture
def sick(scores: Scores) -> Snapshot:  # noqa: F811
    """n0:0 does not answer, n1:0 has memory errors and is an outlier besides; n2 is well."""
    found = scores({**EVEN, "n1": [1.5, 1.0, 1.0, 1.0]})
    return broken(found, {("n0", 0): "no_answer", ("n1", 0): "ecc"})


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sensitivity", CLASSES)
@pytest.mark.parametrize("words", ["--gres=gpu:1", "--gpus=2", "--gres=gpu:4", "--exclusive --gres=gpu:1"])
def test_no_rule_takes_a_faulty_gpu_for_any_class(policy: str, sensitivity: str, words: str, sick: Snapshot) -> None:
    made = choose(words, cluster(THREE), sick, sensitivity, policy=policy)
    assert made.pinned == ("n2",) and made.chosen is not None and not made.chosen.faulty
    assert "n0:0 (no-answer)" in made.reason and "10.0" not in made.reason


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sensitivity", "AC")
def test_a_job_is_rather_spread_than_put_on_one(policy: str, sensitivity: str, sick: Snapshot) -> None:
    """Slurm hands out the lowest index first, and one sound GPU is left on each of the nodes."""
    last = [
        node("n0", gpus_used=2, cpus_used=2),
        node("n1", gpus_used=3, cpus_used=3),
        node("n2", gpus_used=3, cpus_used=3),
    ]
    held = (job(1, {"n0": (1, 2)}), job(2, {"n1": (0, 1, 2)}), job(3, {"n2": (0, 1, 2)}))
    for words in ("--gpus=2", "-n2 --gpus=2", "--gpus=2 -N2"):
        made = choose(words, cluster(last, held), sick, sensitivity, policy=policy)
        assert made.chosen is not None and made.chosen.slots == [("n1", 3), ("n2", 3)], words


@pytest.mark.parametrize("sensitivity", CLASSES)
def test_where_only_faulty_ones_are_free_a_job_waits_as_long_as_that_pays(sensitivity: str, sick: Snapshot) -> None:
    nodes = [node("n0"), node("n1", gpus_used=4, cpus_used=4), node("n2", gpus_used=4, cpus_used=4)]
    busy = cluster(nodes, (job(1, {"n1": (0, 1, 2, 3), "n2": (0, 1, 2, 3)}),))
    made = choose("--gres=gpu:1 -t 60", busy, sick, sensitivity)
    assert (made.action, made.excluded, made.lease_s) == ("exclude", ("n0",), 600.0)
    assert "n0:0 (no-answer)" in made.reason and made.unknown[0].endswith("n0:0 (no-answer)")
    short = choose("--gres=gpu:1 -t 1", busy, sick, sensitivity)
    assert short.lease_s == pytest.approx(0.5 * (FAULTY - 1.0) * 30), "no longer than waiting can pay"
    assert choose("--gres=gpu:1 -t 60", busy, sick, sensitivity, clearer="").added == ()


def test_a_slow_gpu_is_better_than_to_wait_and_get_a_faulty_one(scores: Scores) -> None:  # noqa: F811
    """When a list is taken back, Slurm picks by itself."""
    snapshot = broken(scores({"n0": [1.0] * 4, "n1": [1.5] * 4, "n2": [1.0] * 4}), {("n0", 0): "no_answer"})
    nodes = [node("n0"), node("n1"), node("n2", gpus_used=4, cpus_used=4)]
    busy = cluster(nodes, (job(1, {"n2": (0, 1, 2, 3)}),))
    made = choose("--gres=gpu:1 -t 60", busy, snapshot)
    assert made.slower_why == "some of those were seen to fail, n0:0 (no-answer)"
    assert (made.action, made.pinned, made.lease_s) == ("nodelist", ("n1",), 600.0)
    well = scores({"n0": [1.5] * 4, "n1": [1.5] * 4, "n2": [1.0] * 4})
    assert choose("--gres=gpu:1 -t 60", busy, well).action == "exclude"


@pytest.mark.parametrize("sensitivity", CLASSES)
def test_where_nothing_else_will_come_slurm_decides(sensitivity: str, scores: Scores) -> None:  # noqa: F811
    dead = broken(scores({"n0": [1.0] * 4, "n1": [1.0] * 4}), {(n, k): "xid" for n in ("n0", "n1") for k in range(4)})
    made = choose("--gres=gpu:1", cluster(THREE[:2]), dead, sensitivity)
    assert (made.action, made.added) == ("none", ()) and "no better ones" in made.reason
    named = choose("--gres=gpu:1 -w n0", cluster(THREE[:2]), dead, sensitivity)
    assert (named.action, named.added) == ("none", ()), "the user named the node"


def test_faulty_gpus_without_a_score_are_avoided_too(scores: Scores) -> None:  # noqa: F811
    snapshot = broken(scores({"n0": [float("nan")] * 4, "n1": [float("nan")] * 4}), {("n0", 0): "missing"})
    assert choose("--gres=gpu:1", cluster(THREE[:2]), snapshot).pinned == ("n1",)


def test_an_offer_shows_what_was_measured_not_what_stands_for_a_fault(sick: Snapshot) -> None:
    made = decide(request("--gres=gpu:1"), cluster(THREE), sick, "A", Settings(), "daemon", NOW_S)
    assert made.plain is not None and made.plain.faulty == "n0:0 (no-answer)" and made.plain.slowdown == 1.0
    assert all(offer.slowdown < FAULTY for offer in made.alternatives)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sensitivity", SENSITIVITY_CLASSES)
def test_no_move_goes_to_a_faulty_gpu(policy: str, sensitivity: str, sick: Snapshot) -> None:
    occupancy = Survey(cluster(THREE), sick, ()).occupancy
    for count in (1, 1, 1, 1):  # a burst: rankings are kept
        placed = occupancy.place(policy, GpuShape(count, nodes=1, per_node=count), Rule(sensitivity, 1.7, 1.05))
        assert placed is not None and [occupancy.names[i] for i in placed.nodes] == ["n2"]
        occupancy.take(list(zip(placed.nodes, placed.gpus, strict=True)))
    last = occupancy.place(policy, GpuShape(1, nodes=1, per_node=1), Rule(sensitivity, 1.7, 1.05))
    assert last is not None and last.slowdown == FAULTY, "nothing else is free"


@pytest.mark.parametrize("sensitivity", SENSITIVITY_CLASSES)
def test_standing_answers_name_sound_gpus_first_and_say_what_to_keep_off(sensitivity: str, sick: Snapshot) -> None:
    found = standing(cluster(THREE), sick, Settings())
    pool = found.pools["gpu", ""]
    for preference in (1,):
        names = {found.nodes[place].name for place, gone in found.lists.get((pool, sensitivity, preference, "1"), ())
                 if not gone}  # fmt: skip
        assert names <= {"n2"}
    assert set(found.slow[pool, sensitivity, "1"]) == {"n0", "n1"}
    assert {spare.name: spare.fast for spare in found.spares[pool, sensitivity]} == {"n0": 3, "n1": 3, "n2": 4}


def test_a_node_with_a_faulty_gpu_bears_no_class_and_is_taken_last(sick: Snapshot) -> None:
    assert {name for name, features in wanted_features(THREE, sick).items() if features} == {"n2"}
    (update,) = weight_updates(THREE, sick, 1.05, {})
    assert update.names == ("n0", "n1") and update.weight > update.base
