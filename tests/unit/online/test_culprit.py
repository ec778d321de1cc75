# SPDX-License-Identifier: MIT
"""Whom the ranks of a job wait for: one GPU, a node, or nobody."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from slurm_pal.emulation.collectives import Behaving, Rank, files
from slurm_pal.online import collectives, culprit
from slurm_pal.online.collectives import Collective
from slurm_pal.online.culprit import Culprit, Found

INNER = Behaving(steps=60, layers=4, buckets=2)


def find(folder: Path, ranks: list[Rank], behaving: Behaving, seed: int = 1) -> Found:
    for name, text in files(ranks, behaving, random.Random(seed)).items():
        (folder / name).write_text(text)
    return culprit.find(collectives.read(str(folder)).collectives)


def ranks(hosts: int, gpus: int, slow: Mapping[tuple[int, int], float]) -> list[Rank]:
    return [Rank(f"n{h}", k, slow.get((h, k), 1.0)) for h in range(hosts) for k in range(gpus)]


@pytest.mark.parametrize("behaving", [Behaving(steps=60), INNER])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_slow_gpu_is_named_and_its_node_is_not(tmp_path: Path, behaving: Behaving, seed: int) -> None:
    one = find(tmp_path, ranks(2, 4, {(1, 2): 1.1}), behaving, seed).culprit
    assert one is not None and (one.host, one.position, one.of, one.alone) == ("n1", 2, 4, False)
    assert 0.02 < one.share < 0.1 and one.sure > 0.9 and 1.02 < one.factor < 1.11


@pytest.mark.parametrize("behaving", [Behaving(steps=60), INNER])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_slow_node_is_named_as_a_whole(tmp_path: Path, behaving: Behaving, seed: int) -> None:
    found = find(tmp_path, ranks(2, 4, {(1, k): 1.1 for k in range(4)}), behaving, seed)
    one = found.culprit
    assert one is not None and (one.host, one.position, found.also) == ("n1", None, ())


@pytest.mark.parametrize("behaving", [
    Behaving(steps=60), Behaving(steps=60, stall_rate=0.02, stall_s=1.0), Behaving(steps=60, noise=0.05),
    Behaving(steps=60, network_noise=0.8, burst_rate=0.1), INNER,
])  # fmt: skip
def test_stalls_and_a_noisy_network_are_nobodys_fault(tmp_path: Path, behaving: Behaving) -> None:
    found = find(tmp_path, ranks(2, 4, {}), behaving)
    assert found.culprit is None and not found.why_not and found.collectives > 100


def test_without_another_gpu_on_its_node_the_node_may_be_meant(tmp_path: Path) -> None:
    one = find(tmp_path, ranks(4, 1, {(2, 0): 1.1}), Behaving(steps=60)).culprit
    assert one is not None and (one.host, one.position, one.alone) == ("n2", 0, True)


def test_a_slow_gpu_whose_neighbour_is_a_little_slow_is_named(tmp_path: Path) -> None:
    one = find(tmp_path, ranks(2, 2, {(1, 0): 1.12, (1, 1): 1.035}), Behaving(steps=60, noise=0.002)).culprit
    assert one is not None and (one.host, one.position) == ("n1", 0)


def test_two_slow_gpus_the_slower_one_first(tmp_path: Path) -> None:
    found = find(tmp_path, ranks(2, 4, {(0, 1): 1.2, (1, 2): 1.19}), INNER)
    assert found.culprit is not None and (found.culprit.host, found.culprit.position) == ("n0", 1)


def test_steps_are_found_by_their_times_where_all_collectives_look_alike(tmp_path: Path) -> None:
    for name, text in files(ranks(1, 4, {(0, 3): 1.1}), Behaving(steps=100), random.Random(3)).items():
        (tmp_path / name).write_text(text)
    alike = [one._replace(kind="allreduce 1") for one in collectives.read(str(tmp_path)).collectives]
    one = culprit.find(alike).culprit
    assert one is not None and one.position == 3


def test_an_earlier_step_of_the_job_is_over(tmp_path: Path) -> None:
    """Its processes have ended: they are no ranks of the node any more, and nobody waits for them."""
    for place, start_s, behaving in ((0, 1.7e9, Behaving(steps=60)), (2, 1.7e9 + 120.0, Behaving(steps=60))):
        step = [Rank(f"n{h}", k, 1.1 if (h, k) == (1, place) else 1.0) for h in range(2) for k in range(4)]
        for name, text in files(step, behaving, random.Random(1), start_s=start_s).items():
            moved = text.replace('"pid": 1', f'"pid": {place + 1}1').replace('"id": "', f'"id": "{place}')
            (tmp_path / f"{place}-{name}").write_text(moved)
    found = culprit.find(collectives.read(str(tmp_path)).collectives)
    assert found.culprit is not None and (found.culprit.host, found.culprit.position) == ("n1", 2)
    assert (found.culprit.of, found.ranks, found.also) == (4, 8, ())


def test_many_ranks_cost_no_more_than_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pal progress` runs between two steps of the job."""
    made, sorted_values = 400, 0

    def counted(values: Iterable[float]) -> float:
        nonlocal sorted_values
        known = list(values)
        sorted_values += len(known)
        return statistics.median_high(known)

    monkeypatch.setattr(culprit, "median_high", counted)
    late = [Collective("c", k, "allreduce 1", r, made, f"n{r // 8}", r, f"f{r}", 1000.0 + (r * k) % 7, 1e5 * k)
            for k in range(50) for r in range(made)]  # fmt: skip
    assert culprit.find(late).culprit is None and 0 < sorted_values < 10 * len(late)


def test_too_little_is_no_evidence() -> None:
    assert "no collective" in culprit.find([]).why_not
    row = Collective("c", 1, "allreduce 8", 0, 2, "n0", 1, "a", 5.0, 1.0)
    both = [row, row._replace(rank=1, source="b", exec_us=1.0)]
    assert "too few" in culprit.find(both).why_not
    assert "no collective" in culprit.find([one._replace(kind="broadcast 8") for one in both]).why_not


def test_records_that_a_rank_lost_do_not_count(tmp_path: Path) -> None:
    """Half of one rank's records are missing, and it is not late because of that."""
    for name, text in files(ranks(1, 4, {}), Behaving(steps=200), random.Random(4)).items():
        (tmp_path / name).write_text(text)
    seen = collectives.read(str(tmp_path)).collectives
    kept = [one for one in seen if one.rank != 2 or one.number % 8 < 4]
    found = culprit.find(kept)
    assert found.culprit is None and not found.why_not


@pytest.mark.parametrize(("host", "position", "of", "wanted"), [
    ("n3", 1, 2, ("n3", (6,))), ("N3.example.org", 0, 2, ("n3", (4,))), ("n3", None, 2, ("n3", (4, 6))),
    ("n3", 1, 3, ("n3", (4, 6))), ("elsewhere", 0, 2, ("", ())),
])  # fmt: skip
def test_the_place_of_a_culprit(host: str, position: int | None, of: int, wanted: tuple[str, tuple[int, ...]]) -> None:
    assert culprit.place(Culprit(host, position, of, 0, 0.1, 1.0, False), {"n3": (6, 4), "n4": (0,)}) == wanted
