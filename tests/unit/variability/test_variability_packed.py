# SPDX-License-Identifier: MIT
"""Rows as columns: what goes in comes out, from memory and from bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.variability.packed import Packed
from slurm_pal.variability.runs import OBSERVATIONS, SIGHTINGS, Environment, Group, Sighting, SweepObservation

from ...doubles.trials import trials

TEXT = st.text(max_size=5)
FLOAT = st.floats(allow_nan=False)
FLAGS = st.frozensets(TEXT, max_size=3)
GROUPS = st.builds(Group, TEXT, TEXT, TEXT, TEXT, st.integers(0, 99), TEXT, TEXT, TEXT)
ENVIRONMENTS = st.builds(Environment, TEXT, TEXT, TEXT, TEXT, TEXT)
SEEN = st.builds(
    SweepObservation, TEXT, GROUPS, FLOAT, FLOAT, st.sampled_from([1.0, 0.25]), FLOAT, st.none() | FLOAT, FLAGS,
    st.none() | FLOAT, ENVIRONMENTS, st.none() | FLOAT,
)  # fmt: skip
SIGHTED = st.builds(
    Sighting, FLOAT, TEXT, TEXT, TEXT, st.integers(0, 1023), TEXT, TEXT, ENVIRONMENTS,
    st.lists(TEXT, max_size=5).map(tuple), FLAGS,
)  # fmt: skip


@trials(30)
@given(st.lists(SEEN, max_size=5), st.lists(SIGHTED, max_size=5))
def test_rows_survive(seen: list[SweepObservation], sighted: list[Sighting]) -> None:
    for layout, rows in ((OBSERVATIONS, seen), (SIGHTINGS, sighted)):
        packed: Packed[SweepObservation | Sighting] = Packed(layout, rows)
        again: Packed[SweepObservation | Sighting] = Packed.from_bytes(layout, memoryview(packed.to_bytes()))
        assert list(packed) == list(again) == rows and packed == again
        assert [type(row.environment) for row in again] == [Environment] * len(rows)
        assert [again[i] for i in range(len(rows))] == rows


def test_equal_values_are_one_object() -> None:
    group = ("A", "gemm_bf16", "emu", "V100", 16, "default", "hash", "TFLOP/s")
    env = Environment("", "", "", "", "")
    rows = [SweepObservation("u", Group(*group), 0.0, 1.0, 1.0, 0.0, None, frozenset({"xid"}), None, env) for _ in "ab"]
    first, second = Packed(OBSERVATIONS, rows)
    assert first.group is second.group and first.flags is second.flags and rows[0].group is not rows[1].group


def test_bytes_that_are_too_few_or_too_many() -> None:
    raw = Packed[Sighting](SIGHTINGS).to_bytes()
    with pytest.raises(ValueError, match="bytes where"):
        Packed.from_bytes(SIGHTINGS, memoryview(raw + b"x"))
