# SPDX-License-Identifier: MIT
"""Exact 1-D k-means and its silhouette against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.variability.kmeans import cluster, silhouette

values = st.lists(st.integers(500, 1500).map(lambda n: n / 1000), min_size=1, max_size=9)


def brute_squares(data: list[float], k: int) -> float:
    """Least within-cluster squares over all cuts of the sorted values into k intervals."""
    ordered = sorted(data)
    best = float("inf")
    for cuts in itertools.combinations(range(1, len(ordered)), k - 1):
        parts = np.split(np.array(ordered), cuts)
        best = min(best, sum(float(((p - p.mean()) ** 2).sum()) for p in parts))
    return best


def brute_silhouette(data: np.ndarray, labels: np.ndarray) -> float:
    scores = []
    for i, x in enumerate(data):
        own = [abs(x - y) for j, y in enumerate(data) if labels[j] == labels[i] and j != i]
        others = [
            np.mean([abs(x - y) for j, y in enumerate(data) if labels[j] == c]) for c in set(labels) - {labels[i]}
        ]
        a, b = (np.mean(own) if own else 0.0), min(others)
        scores.append(0.0 if not own or max(a, b) == 0 else (b - a) / max(a, b))
    return float(np.mean(scores))


@given(values, st.integers(1, 5))
def test_partition_is_the_best_one(data: list[float], k: int) -> None:
    found = cluster(data, k)
    used = min(k, len(set(data)))
    assert found.k == used
    assert found.squares == pytest.approx(brute_squares(data, used), abs=1e-12)
    assert list(found.centroids) == sorted(set(found.centroids))
    for i in range(found.k):
        assert found.centroids[i] == pytest.approx(np.mean(np.array(data)[found.labels == i]))


@given(values, st.integers(1, 4), st.randoms())
def test_order_of_values_does_not_matter(data: list[float], k: int, random: object) -> None:
    order = list(range(len(data)))
    random.shuffle(order)  # type: ignore[attr-defined]
    first, second = cluster(data, k), cluster([data[i] for i in order], k)
    assert first.centroids.tolist() == second.centroids.tolist()
    assert [first.labels[i] for i in order] == second.labels.tolist()


# Rounded: between values that differ in their last bit distances are 0 or not by the order of sums.
@given(st.lists(st.floats(0.5, 2.0).map(lambda x: round(x, 6)), min_size=3, max_size=25), st.integers(2, 6))
def test_silhouette_equals_its_definition(data: list[float], k: int) -> None:
    found = cluster(data, k)
    if found.k < 2:
        with pytest.raises(ValueError, match="at least two"):
            silhouette(data, found.labels)
        return
    assert silhouette(data, found.labels) == pytest.approx(brute_silhouette(np.array(data), found.labels), abs=1e-9)


def test_overlapping_clusters_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        silhouette([1.0, 2.0, 3.0], np.array([0, 1, 0]))


@pytest.mark.parametrize(("data", "k"), [([], 1), ([1.0], 0), ([float("nan")], 1), ([1.0, float("inf")], 2)])
def test_senseless_input_is_refused(data: list[float], k: int) -> None:
    with pytest.raises(ValueError, match="k-means needs"):
        cluster(data, k)
