# SPDX-License-Identifier: MIT
"""What a tick has learnt of the network reaches the files of the users whose jobs showed it, and nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_pal.base.errors import DataError
from slurm_pal.moves.learning import key_of
from slurm_pal.store import localities
from slurm_pal.store.localities import LOCALITIES, Localities, Locality
from slurm_pal.tick.localities import AGAIN_S, LocalityBook

from ...doubles.running_factory import NOW_S, job

LEARNT = {
    key_of("ann", "my train", 8, "A"): (1.3, 1.9), key_of("ann", "wrap", 8, "A"): (1.2,),
    key_of("bob", "train", 8, "C"): (1.05,), key_of("gone", "train", 8, "A"): (2.0,),
}  # fmt: skip
JOBS = [job(1, {}, user="ann", uid=1000), job(2, {}, user="bob", uid=1001), job(3, {}, user="x", uid=1002)]


def of(folder: Path, uid: int) -> Localities:
    return localities.read(LOCALITIES.path_of(str(folder), uid))


def test_each_user_has_their_own(tmp_path: Path) -> None:
    assert LocalityBook(str(tmp_path)).tell(JOBS, LEARNT, NOW_S) == 2
    assert of(tmp_path, 1000) == {localities.key_of("my train", 8): Locality((1.3, 1.9), NOW_S)}
    assert of(tmp_path, 1001) == {localities.key_of("train", 8): Locality((1.05,), NOW_S)}
    assert sorted(os.listdir(tmp_path)) == ["1000.locality.jsonl", "1001.locality.jsonl"]


def test_only_news_is_written(tmp_path: Path) -> None:
    book, key = LocalityBook(str(tmp_path)), key_of("ann", "train", 8, "A")
    assert book.tell(JOBS, {key: (1.3,)}, NOW_S) == 1
    assert book.tell(JOBS, {key: (1.301,)}, NOW_S + 60) == 0
    assert LocalityBook(str(tmp_path)).tell(JOBS, {key: (1.301,)}, NOW_S + 60) == 0, "as a new process finds it"
    assert book.tell(JOBS, {key: (1.4,)}, NOW_S + 120) == book.tell(JOBS, {key: (1.4, 2.0)}, NOW_S + 180) == 1
    assert book.tell(JOBS, {key: (1.4, 2.0)}, NOW_S + 181 + AGAIN_S) == 1, "still so"
    other = key_of("ann", "eval", 8, "A")
    assert book.tell(JOBS, {other: (1.1,)}, NOW_S + 2 * AGAIN_S) == 1 and len(of(tmp_path, 1000)) == 2


def test_a_user_writes_only_their_own(tmp_path: Path) -> None:
    assert LocalityBook(str(tmp_path), only_uid=1001).tell(JOBS, LEARNT, NOW_S) == 1
    assert os.listdir(tmp_path) == ["1001.locality.jsonl"]


def test_a_damaged_file_is_replaced_and_one_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    Path(LOCALITIES.path_of(str(tmp_path), 1000)).write_text("?")
    assert LocalityBook(str(tmp_path)).tell(JOBS, LEARNT, NOW_S) == 2 and len(of(tmp_path, 1000)) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        LocalityBook(str(tmp_path / "file")).tell(JOBS, LEARNT, NOW_S)
