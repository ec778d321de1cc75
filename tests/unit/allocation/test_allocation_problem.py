# SPDX-License-Identifier: MIT
"""What a problem is checked for, and shares that follow from it alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slurm_pal.allocation.problem import (
    Allocation,
    PairShare,
    isolated_throughput,
    problem,
    proportional_throughput,
)
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.research.allocation_policies import names, policy

from ...doubles.allocation_limits import violation


def test_defaults() -> None:
    made = problem([[1, 2]], [1], [3, 4])
    assert made.uses.tolist() == [[1, 0], [0, 1]] and made.capacity.tolist() == [3, 4]
    assert (made.weight.tolist(), made.held.tolist(), made.deadline_s.tolist()) == ([1], [-1], [np.inf])
    assert made.pairs.shape == (0, 0, 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"throughput": np.zeros((2, 0)), "gpus": []}, "at least one column"),
        ({"scale": [1]}, r"scale has the shape \(1,\); with 2 jobs and 2 columns it must be \(2,\)"),
        ({"uses": np.ones((1, 2))}, r"uses has the shape \(1, 2\)"),
        ({"entity_weight": [[1.0]]}, "entity_weight has the shape"),
        ({"speed": 1}, "no field 'speed'"),
        ({"throughput": [[1, np.nan], [1, 1]]}, "throughput must hold finite numbers of at least 0; it holds nan"),
        ({"throughput": [[1, np.inf], [1, 1]]}, "it holds inf"),
        ({"remaining": [5, -1]}, r"remaining must .* it holds -1\.0"),
        ({"scale": [1, 0]}, r"scale must hold finite numbers above 0; it holds 0\.0"),
        ({"weight": [1, np.inf]}, "weight must hold finite numbers above 0; it holds inf"),
        ({"entity_weight": [0.0]}, r"entity_weight must hold finite numbers above 0; it holds 0\.0"),
        ({"deadline_s": [np.inf, np.nan]}, "job 1 has the deadline nan"),
        ({"held": [0, 2]}, "job 1 holds column 2; -1 says that it waits, and there are columns 0 to 1"),
        ({"held": [-2, 0]}, "job 0 holds column -2"),
        ({"entity": [0, 2], "entity_weight": [1, 1]}, "job 1 is of entity 2; there are weights for entities 0 to 1"),
        ({"kind": [0, 3], "pairs": np.ones((1, 1, 2))}, "job 1 is of kind 3; there are pairs for kinds 0 to 0"),
    ],
)
def test_bad_input_is_one_clear_line(given: dict[str, Any], words: str) -> None:
    values = {"throughput": np.ones((2, 2)), "scale": [1, 1], "gpus": [1, 1], **given}
    with pytest.raises(DataError, match=words):
        problem(**values)


def test_reference_throughputs() -> None:
    made = problem([[4, 1], [4, 1]], [1, 4], [3, 1])
    assert proportional_throughput(made) == pytest.approx([3.25, 3.25])
    # Half of all GPUs are 1.5 and .5, more than a job of 1 GPU can use: its time is cut to 1.
    assert isolated_throughput(made) == pytest.approx([3.25, 0.375 * 4 + 0.125])


def test_without_gpus_nothing_is_shared() -> None:
    made = problem([[4, 1]], [1], [0, 0])
    assert proportional_throughput(made).tolist() == isolated_throughput(made).tolist() == [0.0]


def test_violation_is_the_largest_excess() -> None:
    made = problem(np.ones((2, 1)), [1, 2], [2])
    assert violation(made, Allocation(np.array([[0.0], [1.0]]))) == 0
    assert violation(made, Allocation(np.array([[-0.25], [1.0]]))) == 0.25
    assert violation(made, Allocation(np.array([[1.5], [0.0]]))) == 0.5
    assert violation(made, Allocation(np.array([[1.0], [1.0]]))) == 1.0
    pair = (PairShare(0, 1, np.array([0.5])),)
    assert violation(made, Allocation(np.array([[0.75], [0.5]]), pairs=pair)) == 0.25


def test_names_of_policies() -> None:
    for name in names():
        assert policy(name).summary
    with pytest.raises(UsageError, match=r"policy 'gavel:best' is not one of gavel:fifo, "):
        policy("gavel:best")
    with pytest.raises(UsageError, match=r"policy gavel:allox has no \+packing; those that have are gavel:fifo-perf, "):
        policy("gavel:allox+packing")
