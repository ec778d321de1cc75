# SPDX-License-Identifier: MIT
"""late.json: what is written is read, what is damaged is one clear line, and what the scores show of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_pal.base.errors import DataError
from slurm_pal.store import late
from slurm_pal.store.late import Heard, LateGpu
from slurm_pal.store.snapshot import GpuScore

ONE = LateGpu(
    "n1", 2, "u2", "avoid", 5.0, (Heard(1, "ada", 1.1, "B", 100.0, 3), Heard(2, "bob", 1.2, "A", 90.0)), 1, 4.0, True
)
LEVELS = {"A": [1.0, 1.1], "B": [1.0, 1.1], "C": [1.0]}


def score(measured_s: float = 50.0, uuid: str = "u2", index: int = 2) -> GpuScore:
    classes = dict.fromkeys("ABC", "v0")
    return GpuScore("n1", index, uuid, "m", dict.fromkeys("ABC", 1.0), classes, measured_s, 1.0, ("step",))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = late.path_of(str(tmp_path))
    assert late.read(path) == ()
    late.write(path, [ONE])
    assert late.read(path) == (ONE,) and os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", [
    "", "[", "[]", '{"schema": "pal.late/2", "gpus": []}', '{"schema": "pal.late/1"}',
    '{"schema": "pal.late/1", "gpus": [{"node": "n1"}]}', "[" * 100_000,
    json.dumps({"schema": "pal.late/1", "gpus": [{**LateGpu("n", 0, "", "up", 0.0)._asdict()}]}),
    json.dumps({"schema": "pal.late/1", "gpus": [{**LateGpu("n", 0, "", "avoid", float("nan"))._asdict()}]}),
])  # fmt: skip
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "late.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"late\.json"):
        late.read(str(path))


def test_a_late_gpu_is_flagged_and_slower_only_where_it_is_avoided() -> None:
    (seen,) = late.shown([score()], [ONE], LEVELS)
    assert seen.flags == ("step", "late") and seen.slowdown == {"A": 1.1, "B": 1.1, "C": 1.0}
    assert seen.variability_class == {"A": "v1", "B": "v1", "C": "v0"}
    (seen,) = late.shown([score()], [ONE._replace(rung="annotate")], LEVELS)
    assert seen.flags == ("step", "late") and seen.slowdown["A"] == 1.0


@pytest.mark.parametrize("other", [score(measured_s=101.0), score(uuid="another"), score(index=3)])
def test_what_was_measured_since_or_is_another_gpu_is_shown_as_measured(other: GpuScore) -> None:
    assert late.shown([other], [ONE], LEVELS) == [other]


def test_a_released_gpu_is_shown_as_measured() -> None:
    assert late.shown([score()], [ONE._replace(rung="released")], LEVELS) == [score()]


def test_one_user_has_one_vote() -> None:
    jobs = [Heard(k, "eve", 2.0, "A", 100.0 + k) for k in range(20)]
    assert (
        ONE._replace(heard=(*jobs, Heard(99, "ada", 1.05, "A", 100.0), Heard(98, "bob", 1.06, "A", 1.0))).factor == 1.06
    )
