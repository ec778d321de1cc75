# SPDX-License-Identifier: MIT
"""PAL's bins and L x V lists against the files that its artifact wrote (blox-pal, branch artifact).

The files are read from $PAL_REFERENCE_DATA, or from ../shared/data beside the checkout.
"""

from __future__ import annotations

import ast
import csv
import os
import random
import statistics
from pathlib import Path

import numpy as np
import pytest

from slurm_pal.placement.lxv import lxv
from slurm_pal.variability.kmeans import cluster
from slurm_pal.variability.published import as_intended, as_shipped

DATA = Path(os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data") / "pal"
pytestmark = pytest.mark.skipif(
    not (DATA / "expected").is_dir(), reason=f"no reference data in {DATA}; set PAL_REFERENCE_DATA"
)
CLASSES = "ABCD"
LOCALITY_PENALTY = 1.7


def column(path: Path, name: str) -> list[float]:
    with open(path, newline="", encoding="utf-8") as stream:
        return [float(row[name]) for row in csv.DictReader(stream)]


def profile(sensitivity: str) -> list[float]:
    return column(DATA / "expected" / "gpu_df_64gpu_seed42.csv", f"PerfVar_class{sensitivity}")


@pytest.mark.parametrize("sensitivity", CLASSES)
def test_bins_as_shipped(sensitivity: str) -> None:
    expected = column(DATA / "expected" / f"gpudf_class{sensitivity}.csv", "sf")
    assert as_shipped(profile(sensitivity)).sf.tolist() == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize("sensitivity", CLASSES)
def test_products_in_the_published_order(sensitivity: str) -> None:
    lines = (DATA / "expected" / "order-details.csv").read_text(encoding="utf-8").splitlines()
    (line,) = (text for text in lines if text.startswith(f"class{sensitivity} "))
    expected = ast.literal_eval(line.partition(",")[2].strip().rstrip(",").strip())
    found = lxv(as_shipped(profile(sensitivity)).sf.tolist(), LOCALITY_PENALTY)
    assert [within for _, within, _ in found] == [bool(flag) for _, flag, _ in expected]
    assert [level for level, _, _ in found] == pytest.approx([v for v, _, _ in expected], rel=0, abs=1e-12)
    assert [product for _, _, product in found] == pytest.approx([p for _, _, p in expected], rel=0, abs=1e-12)


def test_profiles_are_the_documented_draw() -> None:
    """256 draws from raw single runs with seed 42: what the published simulator calls a GPU."""
    files = {"A": "resnet", "B": "bert", "C": "bert", "D": "pagerank"}
    runs = {c: column(DATA / "profiles" / f"{name}-longhorn-agg.csv", "perf") for c, name in files.items()}
    normed = {c: [value / statistics.median(values) for value in values] for c, values in runs.items()}
    draw = random.Random(42)
    rows = [[draw.choice(normed[c]) for c in CLASSES] for _ in range(64)]
    for i, c in enumerate(CLASSES):
        assert [row[i] for row in rows] == pytest.approx(profile(c), rel=0, abs=1e-12)


@pytest.mark.parametrize("sensitivity", CLASSES)
def test_bins_as_intended(sensitivity: str) -> None:
    """The procedure of the paper's text: outliers apart, k by silhouette, 1.0 is the median GPU."""
    values = np.array(profile(sensitivity))
    bins = as_intended(values)
    beyond = values > values.mean() + 3 * values.std(ddof=1)
    assert bins.lone.tolist() == beyond.tolist()
    for i in np.flatnonzero(beyond):
        assert bins.sf[i] == pytest.approx(values[i] / np.median(values))
    rest = values[~beyond]
    scores = {k: mean_silhouette(rest, cluster(rest, k).labels) for k in range(2, 11)}
    assert len(bins.levels) - int(beyond.sum()) == max(scores, key=lambda k: scores[k])
    for level in range(len(bins.levels)):
        members = values[bins.labels == level]
        assert bins.levels[level] == pytest.approx(members.mean() / np.median(values))


def mean_silhouette(values: np.ndarray, labels: np.ndarray) -> float:
    """By definition, from all pairs."""
    distance = np.abs(values[:, None] - values[None, :])
    sums = np.array([distance[:, labels == c].sum(axis=1) for c in range(labels.max() + 1)])
    sizes = np.bincount(labels)
    own = np.arange(len(values))
    inner = sums[labels, own] / np.maximum(sizes[labels] - 1, 1)
    means = sums / sizes[:, None]
    means[labels, own] = np.inf
    outer = means.min(axis=0)
    return float(np.where(sizes[labels] > 1, (outer - inner) / np.maximum(inner, outer), 0.0).mean())


def test_the_only_outlier_of_class_a_is_gpu_35() -> None:
    assert np.flatnonzero(as_intended(profile("A")).lone).tolist() == [35]
