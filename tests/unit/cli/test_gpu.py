# SPDX-License-Identifier: MIT
"""A GPU by its place or by the beginning of its UUID."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_pal.base.errors import UsageError
from slurm_pal.cli.gpu import Gpu, Place, measured
from slurm_pal.store.database import open_database

from ...doubles.records_factory import NOW_S, record

PLACES = [
    Place("n0", 0, "GPU-aaaaaaaa-1"), Place("n0", 1, "GPU-aaaaaaaa-2"), Place("n1", 0, "GPU-bbbbbbbb-1"),
    Place("n1", 1, "MIG-cccccccc-1"), Place("n2", 0, ""), Place("n2", 1, "intel-n2-0000:03:00.0"), Place("n2", 2, "x1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("n0:1", 1), ("n2:0", 4), ("GPU-aaaaaaaa-1", 0), ("GPU-bbbbbbbb", 2), ("MIG-cccccccc", 3), ("x1", 6),
        ("intel-n2-0000:03", 5), ("intel-n2-0000:03:00.0", 5),
    ],
)  # fmt: skip
def test_a_gpu_by_place_and_by_uuid(text: str, meant: int) -> None:
    assert Gpu(text).among(PLACES) == PLACES[meant]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("GPU-aaaaaaaa", "2 GPUs begin with 'GPU-aaaaaaaa': GPU-aaaaaaaa-1 (n0:0), GPU-aaaaaaaa-2 (n0:1); write more"),
        ("GPU-bbbbbbb", "'GPU-bbbbbbb' is too short for a GPU, 8 characters after GPU- are needed: GPU-bbbbbbbb-1 ("),
        ("GPU-b", "'GPU-b' is too short for a GPU, 8 characters"),
        ("n1:7", "no GPU 'n1:7': that node has n1:0, n1:1; write NODE:INDEX like n7:0, or a UUID"),
        ("n1", "no GPU 'n1': that node has n1:0, n1:1; "),
        ("n9:0", "no GPU 'n9:0': the nodes are n[0-2]; write"),
        ("GPU-bbbbcccc", "no GPU 'GPU-bbbbcccc': there is GPU-bbbbbbbb-1 (n1:0), GPU-aaaaaaaa-1 (n0:0), "),
        ("n0:-1", "no GPU 'n0:-1': that node has "),
        ("n0:\uff11", "that node has "),  # a digit, but none of ASCII
        ("", "no GPU '': there is "),
        (":", "no GPU ':': there is "),
    ],
)  # fmt: skip
def test_one_line_says_what_could_be_meant(text: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        Gpu(text).among(PLACES)
    assert why in str(error.value) and "\n" not in str(error.value)


def test_many_candidates_are_counted() -> None:
    with pytest.raises(UsageError, match=r"^20 GPUs begin with 'GPU-': .*\(n0:4\) and 15 more; write more of it$"):
        Gpu("GPU-").among(Place("n0", k, f"GPU-{k:012x}") for k in range(20))
    with pytest.raises(UsageError, match=r"^no GPU 'n0:0' here$"):
        Gpu("n0:0").among([])


def test_the_gpu_measured_last_at_a_place_is_the_one_there(tmp_path: Path) -> None:
    with open_database(str(tmp_path), write=True) as database:
        database.insert([record(uuid="GPU-old", ts=NOW_S - 9), record(uuid="GPU-new", ts=NOW_S)], NOW_S)
        places = measured(database)
    assert [place.uuid for place in places] == ["GPU-new", "GPU-old"]
    assert Gpu(f"{places[0].node}:{places[0].gpu_index}").among(places).uuid == "GPU-new"
