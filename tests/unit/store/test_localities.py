# SPDX-License-Identifier: MIT
"""Locality penalties of a user's jobs: written, found again by name and GPUs, and refused where they make no sense."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from slurm_pal.base.errors import DataError
from slurm_pal.store import localities, user_files
from slurm_pal.store.localities import LOCALITIES, Localities, Locality

NOW_S = 1.7e9


@pytest.fixture
def path(tmp_path: Path) -> str:
    return LOCALITIES.path_of(user_files.site_folder(str(tmp_path / "snapshot")), os.geteuid())


def test_what_is_written_is_found(path: str) -> None:
    train, other = localities.key_of("train", 8), localities.key_of("train", 16)
    found: Localities = {train: Locality((1.3, 1.9), NOW_S), other: Locality((1.1,), NOW_S)}
    localities.write(path, found)
    assert localities.read(path) == found
    assert localities.lookup(path, train) == found[train] and localities.lookup(path, "n0:8") is None
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert train != other and train != localities.key_of("trains", 8)


def test_no_file_is_no_knowledge(path: str) -> None:
    assert localities.read(path) == {} and localities.lookup(path, "n1:8") is None


@pytest.mark.parametrize("name", ["wrap", "python", "", "  "])
def test_names_that_say_nothing_have_no_key(name: str) -> None:
    assert localities.key_of(name, 8) == ""


def test_what_was_shown_longest_ago_is_forgotten(path: str) -> None:
    localities.write(path, {f"n{k}:2": Locality((1.5,), NOW_S + k) for k in range(600)})
    assert localities.read(path).keys() == {f"n{k}:2" for k in range(100, 600)}


@pytest.mark.parametrize("row", [
    '{"key": "n1:8", "penalties": [], "at_s": 1}', '{"key": "n1:8", "penalties": [0.9], "at_s": 1}',
    '{"key": "n1:8", "penalties": [NaN], "at_s": 1}', '{"key": "n1:8", "penalties": [1.5], "at_s": -1}',
    '{"key": "n1:8", "penalties": [1e9], "at_s": 1}', '{"key": "n1:8", "penalties": 1.5, "at_s": 1}',
    f'{{"key": "n1:8", "penalties": {[1.5] * 17}, "at_s": 1}}', '{"key": "n1:8"}', "[]",
])  # fmt: skip
def test_nonsense_is_refused_with_what_to_do(path: str, row: str) -> None:
    os.makedirs(os.path.dirname(path))
    Path(path).write_text(f'{{"schema": "pal.locality/1"}}\n{row}\n')
    for read in (localities.read, lambda where: localities.lookup(where, "n1:8")):
        if read is localities.read or row.startswith('{"key"'):
            with pytest.raises(DataError, match=r"locality penalties .* cannot be read .*: rm it, and ticks write"):
                read(path)


def test_another_file_is_none_of_ours(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    Path(path).write_text('{"schema": "pal.labels/1"}\n')
    with pytest.raises(DataError, match=r"not a file of pal\.locality/1"):
        localities.read(path)
