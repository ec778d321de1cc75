# SPDX-License-Identifier: MIT
"""What all GPUs share is taken out and shown once; what a node or a few GPUs show is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slurm_pal.variability.classify import Classification
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.shift import common

from ...doubles.records_factory import DAY_S, NOW_S, classify, sweep, truth, uuid_of

P = Params()
TRUE = {"A": truth(96)["A"]}  # 24 nodes of 4


def at(day: float, factor: float = 1.0, **changes: object) -> list[Record]:
    """A sweep so many days before now, everything slower by the factor."""
    values = {"A": [factor * x for x in TRUE["A"]]}
    return sweep(values, f"s{100 - day}", ts=NOW_S - day * DAY_S, noise=0.001, **changes)  # type: ignore[arg-type]


def scores(found: Classification) -> np.ndarray:
    by_uuid = {gpu.uuid: gpu.slowdown["A"] for gpu in found.gpus}
    return np.array([by_uuid[uuid_of(i)] for i in range(96)])


def error(found: Classification) -> float:
    return float(np.sqrt(np.mean((scores(found) - np.array(TRUE["A"]) / np.median(TRUE["A"])) ** 2)))


def flags(found: Classification) -> set[str]:
    return set().union(*(gpu.flags for gpu in found.gpus))


def test_a_shift_of_all_gpus_changes_no_score_and_no_class() -> None:
    made = [*at(50), *at(40), *at(30), *at(20, 1.015)]
    before, after = classify(made[: 3 * 96], NOW_S - 25 * DAY_S), classify(made, NOW_S - 15 * DAY_S)
    assert {g.uuid: g.variability_class for g in before.gpus} == {g.uuid: g.variability_class for g in after.gpus}
    assert after.groups[0].classes == before.groups[0].classes >= 4
    assert error(after) < 0.001 and after.groups[0].repeatability < 0.002
    assert not flags(after) & {"unconfirmed", "step", "drift"}


def test_a_shift_is_shown_once() -> None:
    shown = [n for n in classify([*at(50), *at(40), *at(20, 1.015), *at(10, 1.015)], NOW_S).notices]
    (one,) = [n for n in shown if n.state == "shifted"]
    assert one.size == pytest.approx(0.015, abs=0.001) and (one.gpus, one.other) == (96, 24)
    assert one.since_s == pytest.approx(NOW_S - 20 * DAY_S, abs=60)
    late = classify([*at(50), *at(40, 1.015), *at(3, 1.015)], NOW_S)
    assert not [n for n in late.notices if n.state == "shifted"], "seen more than 30 days ago"


def test_in_a_rolling_sweep_measured_and_unmeasured_gpus_stay_comparable() -> None:
    made = [*at(60), *at(50)]
    for part in range(4):
        made += at(40 - 9 * part, 1.015, only=range(24 * part, 24 * part + 24))
        found = classify(made, NOW_S - (39 - 9 * part) * DAY_S)
        assert error(found) < 0.0012 and found.groups[0].classes >= 4
        assert not flags(found) & {"unconfirmed", "step"}


def test_a_node_that_became_slow_is_no_common_shift() -> None:
    made = [*at(50), *at(40), *at(20, 1.03, only=range(4)), *at(10, 1.03, only=range(4))]
    moved = scores(classify(made, NOW_S))[:4] / (np.array(TRUE["A"]) / np.median(TRUE["A"]))[:4]
    assert np.allclose(moved, 1.03, atol=0.004)


def test_what_half_of_the_gpus_show_is_no_common_shift() -> None:
    """New firmware for the boards of one maker, on every node: the median GPU has changed by what none did."""
    mixed = {"A": [x * (1.03 if i % 2 else 1.0) for i, x in enumerate(TRUE["A"])]}
    made = [*at(50), *at(40), *at(30), *sweep(mixed, "s90", ts=NOW_S - 10 * DAY_S, noise=0.001)]
    found = classify(made, NOW_S - 9 * DAY_S)
    assert not [n for n in found.notices if n.state == "shifted"]
    doubted = {g.uuid for g in found.gpus if "unconfirmed" in g.flags}
    assert not doubted & {uuid_of(i) for i in range(0, 96, 2)} and len(doubted) >= 40


def test_a_node_measured_alone_after_a_shift_has_it_taken_out() -> None:
    made = [*at(50), *at(40), *at(30, 1.02, only=range(48)), *at(20, 1.02, only=range(48, 52))]
    found = classify(made, NOW_S - 15 * DAY_S)
    assert error(found) < 0.0012 and not flags(found) & {"unconfirmed", "step"}


def test_a_common_shift_hides_no_gpu_that_became_slow_besides() -> None:
    made = [*at(50), *at(40)]
    for day in (20, 10):
        made += [
            replace(r, result=replace(r.result, value=r.result.value / 1.1)) if r.gpu.uuid == uuid_of(40) else r
            for r in at(day, 1.015)
        ]
    found = classify(made, NOW_S)
    gpu = next(gpu for gpu in found.gpus if gpu.uuid == uuid_of(40))
    assert gpu.slowdown["A"] == pytest.approx(1.1 * TRUE["A"][40], abs=0.004) and "step" in gpu.flags
    assert sum("step" in gpu.flags for gpu in found.gpus) == 1


def test_what_only_a_rack_shows_is_given_back_to_it() -> None:
    """Three nodes together look like all; once others are measured and differ, the three are slow."""
    true = np.array(TRUE["A"]) / np.median(TRUE["A"])
    made = [*at(50), *at(40), *at(30, 1.03, only=range(12))]
    doubtful = classify(made, NOW_S - 25 * DAY_S)
    assert np.allclose(scores(doubtful), true, atol=0.004) and [n.state for n in doubtful.notices] == ["shifted"]
    slower = np.r_[1.03 * true[:12], true[12:]]
    slower /= np.median(slower)
    found = classify([*made, *at(20, only=range(12, 36))], NOW_S - 15 * DAY_S)
    assert np.allclose(scores(found), slower, atol=0.004) and not found.notices
    later = classify([*made, *at(20, only=range(12, 36)), *at(10, 1.03, only=range(12))], NOW_S - 5 * DAY_S)
    assert np.allclose(scores(later), slower, atol=0.006)


def test_gpus_that_are_measured_again_because_they_changed_are_not_the_common_level() -> None:
    """Twelve GPUs of as many nodes became slower; the sweep that is to confirm them has no others."""
    moved = range(0, 48, 4)
    slower = {"A": [x * 1.015 if i in moved else x for i, x in enumerate(TRUE["A"])]}
    made = [*at(50), *at(43), *at(36), *at(29), *at(22)]
    made += sweep(slower, "s85", ts=NOW_S - 15 * DAY_S, noise=0.001)
    doubtful = classify(made, NOW_S - 14.5 * DAY_S)
    assert {g.uuid for g in doubtful.gpus if "unconfirmed" in g.flags} == {uuid_of(i) for i in moved}
    for day in (14, 13):
        made += sweep(slower, f"s{100 - day}", ts=NOW_S - day * DAY_S, noise=0.001, only=moved)
    found = classify(made, NOW_S - 12 * DAY_S)
    assert {g.uuid for g in found.gpus if "step" in g.flags} == {uuid_of(i) for i in moved}
    assert not found.notices


def test_what_is_common_needs_several_nodes_or_most_of_the_group() -> None:
    def shift(nodes: dict[str, list[float]], held: int, level: float = 0.0) -> float:
        apart = {node: {f"{node}-{i}": x for i, x in enumerate(values)} for node, values in nodes.items()}
        return common(apart, held, level, P)

    node = [0.015 + d for d in (0.0, 1e-4, -1e-4, 2e-4)]
    assert shift({"n1": node, "n2": node}, 100) == 0.0
    assert shift({"n1": node, "n2": node, "n3": node}, 100) == pytest.approx(0.015, abs=3e-4)
    assert shift({"n1": node}, 8) == pytest.approx(0.015, abs=6e-4)
    assert shift({"n1": node[:3]}, 3) == 0.0, "too few GPUs"
    assert shift({"n1": [0.001] * 4, "n2": [0.03] * 4, "n3": [-0.03] * 4}, 12) == 0.0, "nodes contradict"
    assert shift({}, 100, 0.007) == 0.007
    assert [shift({"n1": [x]}, 100, 0.02) for x in (0.0, 0.009, 0.012, 0.02)] == [0.0, 0.0, 0.02, 0.02]


def test_few_that_scatter_say_nothing_about_the_others() -> None:
    """One node of 8 was tried three more times and scattered by .8 %: all other GPUs then scored exactly 1.0."""
    true = {"A": truth(400)["A"]}
    made = sweep(true, "s0", ts=NOW_S - 9 * DAY_S, per_node=8)
    for i in range(3):
        made += sweep(true, f"t{i}", ts=NOW_S - (5 - i) * DAY_S, per_node=8, only=range(8), noise=0.008)
    found = classify(made, NOW_S)
    assert found.groups[0].repeatability == P.repeatability and found.groups[0].classes >= 4
    assert len({gpu.slowdown["A"] for gpu in found.gpus}) == 400
