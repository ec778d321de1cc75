# SPDX-License-Identifier: MIT
"""Past runs as a throughput table."""

from __future__ import annotations

from math import exp, log, sqrt

import pytest

from slurm_pal.allocation.throughputs import PROGRESS, ThroughputKey, merge
from slurm_pal.base.cluster import Node
from slurm_pal.journal.journal import Observation
from slurm_pal.partitions.history import (
    NO_STEP,
    RUN_SPREAD,
    SEVERAL_TYPES,
    SPREAD_RUNS,
    UNKNOWN_NODE,
    application,
    history,
    spellings,
    types_of,
)

NOW_S, DAY_S = 1_800_000_000.0, 86400.0
TYPES = {"a1": "a100", "a2": "a100", "v1": "v100"}
KNOWN = spellings(["bert", "ResNet-50 (batch size 16)"])


def seen(
    step_s: float = 0.5,
    user: str = "anna",
    name: str = "bert",
    nodes: tuple[str, ...] = ("a1",),
    age_s: float = 0.0,
    predicted: float = 1.0,
    job_id: int = 1,
) -> Observation:
    gpus = tuple((node, 0) for node in nodes)
    return Observation(f"{user} {name} {len(gpus)} A", job_id, 0, "A", gpus, predicted, step_s, NOW_S - age_s)


def entries(*observations: Observation) -> dict[ThroughputKey, object]:
    return dict(history(observations, TYPES, KNOWN, NOW_S).entries)


def test_a_run_is_an_entry_of_its_application_gpus_and_type() -> None:
    found = history([seen(0.5), seen(2.0, nodes=("v1", "v1"))], TYPES, KNOWN, NOW_S)
    assert found.unused == {} and set(found.entries) == {
        ThroughputKey("bert", 1, "a100"),
        ThroughputKey("bert", 2, "v100"),
    }
    one = found.entries[ThroughputKey("bert", 1, "a100")]
    assert (one.steps_per_s, one.runs, one.age_s, one.source) == (pytest.approx(2.0), 1, 0.0, PROGRESS)
    assert one.relative_error == pytest.approx(RUN_SPREAD * sqrt(SPREAD_RUNS / (1 + SPREAD_RUNS)))
    assert found.entries[ThroughputKey("bert", 2, "v100")].steps_per_s == pytest.approx(0.5)


def test_the_rate_is_that_of_median_gpus() -> None:
    found = history([seen(0.6, predicted=1.2)], TYPES, KNOWN, NOW_S).entries
    assert found[ThroughputKey("bert", 1, "a100")].steps_per_s == pytest.approx(2.0)


def test_a_name_that_nobody_knows_is_an_application_of_its_user() -> None:
    found = entries(seen(name="train"), seen(name="train", user="otto"), seen(name="BERT"))
    assert {key.application for key in found} == {"anna/train", "otto/train", "bert"}
    spaced = entries(seen(name="resnet-50 (batch size 16)"), seen(name="my own job"))
    assert {key.application for key in spaced} == {"ResNet-50 (batch size 16)", "anna/my own job"}
    stated = spellings(["*", "otto/train", "Bert", "bert"])
    assert stated == {"bert": "Bert"}
    assert (
        application("anna", "*", stated) == "anna/*" and application("anna", "otto/train", stated) == "anna/otto/train"
    )
    assert application("anna", " Bert ", KNOWN) == "bert" and application("anna", "x", KNOWN) == "anna/x"


def test_newer_runs_count_more_and_give_the_age() -> None:
    found = history([seen(1.0, age_s=30 * DAY_S), seen(0.5, job_id=2)], TYPES, KNOWN, NOW_S, 30 * DAY_S)
    entry = found.entries[ThroughputKey("bert", 1, "a100")]
    assert log(entry.steps_per_s) == pytest.approx(2 / 3 * log(2))
    assert entry.age_s == pytest.approx(10 * DAY_S) and entry.runs == 2


def test_one_user_does_not_change_the_throughput_of_all() -> None:
    honest = [seen(0.5, user=user, job_id=number) for number, user in enumerate(["anna", "otto", "ida"])]
    lies = [seen(1e-5, user="eve", job_id=10 + k) for k in range(100)]
    entry = history([*honest, *lies], TYPES, KNOWN, NOW_S).entries[ThroughputKey("bert", 1, "a100")]
    assert entry.steps_per_s == pytest.approx(2.0)


def test_runs_that_agree_are_surer_and_runs_that_differ_are_not() -> None:
    def error(*steps_s: float) -> float:
        found = history([seen(s, job_id=k) for k, s in enumerate(steps_s)], TYPES, KNOWN, NOW_S).entries
        return found[ThroughputKey("bert", 1, "a100")].relative_error

    assert error(0.5, 0.5, 0.5, 0.5) < 0.6 * error(0.5, 0.5)
    assert error(0.25, 1.0, 0.25, 1.0) > 3 * error(0.5, 0.5, 0.5, 0.5)
    assert error(*[0.5, 0.5 * exp(0.3)] * 50) == pytest.approx(0.15 / 10, rel=0.05)


def test_runs_that_say_nothing_are_counted() -> None:
    bad = [
        seen(nodes=("gone",)), seen(nodes=("a1", "gone")), seen(nodes=("a1", "v1")), seen(nodes=()),
        seen(0.0), seen(float("nan")), seen(1e9), seen(predicted=float("inf")),
    ]  # fmt: skip
    found = history(bad, TYPES, KNOWN, NOW_S)
    assert found.entries == {} and found.unused == {UNKNOWN_NODE: 3, SEVERAL_TYPES: 1, NO_STEP: 4}


def test_a_clock_that_went_back_makes_no_age_below_zero() -> None:
    found = history([seen(age_s=-5 * DAY_S)], TYPES, KNOWN, NOW_S).entries
    assert found[ThroughputKey("bert", 1, "a100")].age_s == 0
    assert merge([found]) == found


def test_types_of_nodes() -> None:
    def node(name: str, types: tuple[str, ...], partitions: tuple[str, ...] = ("gpu", "all")) -> Node:
        return Node(name, frozenset({"IDLE"}), types, 0, 8, 0, 1000, 0, frozenset(), partitions)

    nodes = [
        node("n1", ("a100",) * 4), node("n2", ("", "")), node("n3", ("a100", "v100")), node("n4", ()),
        node("n5", ("",), ()),
    ]  # fmt: skip
    assert types_of(nodes) == {"n1": "a100", "n2": "gpu"}
