# SPDX-License-Identifier: MIT
"""Slurm's state and throughputs as an allocation problem, and its shares by partition."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from slurm_pal.allocation.problem import Allocation, PairShare
from slurm_pal.allocation.steady import STEADY
from slurm_pal.partitions import belonging
from slurm_pal.partitions.belonging import SharedPartitions, Sharer
from slurm_pal.store.snapshot import Snapshot

from ...doubles.faulty_gpus import broken
from ...doubles.partition_site import NOW_S, job, node, overview, part, running, scores
from ...doubles.trials import trials

NAMES = ["fast", "slow"]
NOBODY: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return scores(tmp_path_factory.mktemp("scores"))


def sharer(job_id: int, gpus: int = 1, **given: object) -> Sharer:
    return Sharer(job(job_id), {"slow": 1.0, "fast": 4.0}, gpus, "A", 3600.0)._replace(**given)  # type: ignore[arg-type]


def field(snapshot: Snapshot, *jobs: object, names: list[str] = NAMES, **given: object) -> SharedPartitions:
    found = belonging.shared_partitions(overview(*jobs, **given), snapshot, names, NOBODY)  # type: ignore[arg-type]
    assert found is not None
    return found


def gpus_of(where: SharedPartitions) -> dict[str, float]:
    return {p.name: room.gpus.sum() for p, room in zip(where.site.partitions, where.site.rooms, strict=True)}


def test_gpus_of_partitions_that_are_up(plain: Snapshot) -> None:
    assert gpus_of(field(plain)) == {"slow": 4.0, "fast": 4.0}
    down = [part("slow", "s0", "s1"), part("fast", "f0", "f1", up=False)]
    assert gpus_of(field(plain, parts=down)) == {"slow": 4.0}
    drained = [node("s0", states=frozenset({"IDLE", "DRAIN"})), node("s1"), node("f0"), node("f1", gpus=0)]
    assert gpus_of(field(plain, nodes=drained)) == {"slow": 2.0, "fast": 2.0}
    kept = [node("s0", states=frozenset({"IDLE", "RESERVED"})), node("s1"), node("f0"), node("f1")]
    assert gpus_of(field(plain, nodes=kept)) == {"slow": 2.0, "fast": 4.0}
    assert belonging.shared_partitions(overview(), plain, ["other"], NOBODY) is None


def test_gpus_that_were_seen_to_fail_are_not_shared(tmp_path: Path) -> None:
    known = scores(tmp_path, {name: [1.0, 1.0] for name in ("s0", "s1", "f0", "f1")})
    assert gpus_of(field(known)) == {"slow": 4.0, "fast": 4.0}
    assert gpus_of(field(broken(known, {("s0", 1): "ecc"}))) == {"slow": 3.0, "fast": 4.0}


def test_what_others_hold_is_not_shared(plain: Snapshot) -> None:
    mine, other = running(1, "fast", {"f0": (0, 1)}), running(2, "fast", {"f1": (1,)})
    found = belonging.shared_partitions(overview(mine, other), plain, NAMES, frozenset({1}))
    assert found is not None and gpus_of(found) == {"slow": 4.0, "fast": 3.0}
    all_held = [running(k, "fast", {name: (0, 1)}) for k, name in enumerate(("f0", "f1"), 1)]
    assert gpus_of(field(plain, *all_held)) == {"slow": 4.0}


def test_variability_classes_are_columns(tmp_path: Path) -> None:
    snapshot = scores(tmp_path, {"f0": [1.0, 1.6], "f1": [1.4, 1.4], "s0": [1.0, 1.0]})
    where = field(snapshot)
    fast = where.site.partitions[1]
    assert [list(node) for node in fast.nodes] == [[1, 1], [0, 2]]
    assert fast.slowdown["A"] == pytest.approx([1.0, (1.6 + 1.4 + 1.4) / 3]) and fast.slowdown["C"] == [1.0, 1.0]
    slow = where.site.partitions[0]  # nobody has measured s1: median ones
    assert [list(node) for node in slow.nodes] == [[2, 0], [2, 0]] and slow.slowdown["A"] == [1.0, 1.0]


def test_to_a_policy_that_knows_types_only_the_gpus_of_a_partition_are_alike(tmp_path: Path) -> None:
    snapshot = scores(tmp_path, {"f0": [1.0, 1.6], "f1": [1.4, 1.4], "s0": [1.0, 1.0]})
    where = belonging.shared_partitions(overview(), snapshot, NAMES, NOBODY, alike=True)
    assert where is not None
    assert [[list(node) for node in p.nodes] for p in where.site.partitions] == [[[2], [2]]] * 2
    assert {value for p in where.site.partitions for of in p.slowdown.values() for value in of} == {1.0}


def test_what_a_job_that_stays_holds_is_a_column(tmp_path: Path) -> None:
    snapshot = scores(tmp_path, {"f0": [1.0, 1.6], "f1": [1.4, 1.4], "s0": [1.0, 1.0], "s1": [1.0, 1.0]})
    jobs = [
        running(1, "fast", {"f0": (0,)}), running(2, "fast", {"f0": (1,), "f1": (0,)}),
        running(3, "slow", {"s0": (0,)}), running(4, "slow", {"s0": (1,), "s1": (0,)}),
        running(5, "slow", {"x9": (0,)}),
    ]  # fmt: skip
    where = belonging.shared_partitions(overview(*jobs), snapshot, NAMES, frozenset(range(1, 6)))
    assert where is not None
    sharers = [
        Sharer(one, {"slow": 1.0, "fast": 4.0}, sum(map(len, one.gpus.values())), "A", 600.0, one.job_id != 3)
        for one in jobs
    ]
    made = belonging.problem_of(where, sharers, 1.7, NOW_S)
    names = [where.site.names[k] if k >= 0 else None for k in made.held.tolist()]
    assert names == [("fast", False, 0), ("fast", True, 1), None, ("slow", True, 0), None]


def test_partitions_with_nodes_in_common_have_no_more_gpus_than_these(plain: Snapshot) -> None:
    parts = [part("day", "s0", "f0"), part("night", "f0", "f1"), part("late", "f1"), part("own", "s1")]
    held = running(1, "day", {"f0": (0,)})
    where = field(plain, held, names=["day", "night", "late", "own"], parts=parts)
    # That late has but nodes of night is a bound of its own.
    assert where.overlaps == ((frozenset({"day", "night", "late"}), 5.0), (frozenset({"night", "late"}), 3.0))
    made = belonging.problem_of(where, [sharer(1, speed={"day": 1.0, "night": 1.0, "own": 1.0})], 1.7, NOW_S)
    (row,) = [k for k, capacity in enumerate(made.capacity) if capacity == 5.0]
    assert {c.partition for c, use in zip(where.site.names, made.uses[row], strict=True) if use} == {
        "day", "night", "late",
    }  # fmt: skip


@trials(60)
@given(st.lists(st.sets(st.sampled_from("abcde"), min_size=1), min_size=1, max_size=4))
def test_shares_within_the_bounds_of_partitions_find_their_gpus(inside: list[set[str]]) -> None:
    """Hall's condition: what partitions get at most within the bounds is no more than what their nodes have."""
    parts = {f"p{k}": [node(name) for name in sorted(names)] for k, names in enumerate(inside)}
    bounds = [(frozenset({name}), 2.0 * len(mine)) for name, mine in parts.items()]
    bounds += belonging._overlaps(parts, Counter())
    uses = [[float(name in names) for name in parts] for names, _ in bounds]
    for chosen in product((0.0, 1.0), repeat=len(parts)):
        most = -linprog([-one for one in chosen], A_ub=uses, b_ub=[gpus for _, gpus in bounds]).fun
        together = {one.name for name, taken in zip(parts, chosen, strict=True) if taken for one in parts[name]}
        assert most == pytest.approx(2.0 * len(together))


def test_of_many_partitions_only_all_together_have_a_bound() -> None:
    chain = {f"p{k}": [node(f"n{k}"), node(f"n{k + 1}")] for k in range(belonging.MOST_TOGETHER + 1)}
    whole = belonging._overlaps(chain, Counter())
    assert whole == ((frozenset(chain), 2.0 * (len(chain) + 1)),)
    del chain["p0"]
    assert len(belonging._overlaps(chain, Counter())) > 1
    same = {f"p{k}": [node("n0")] for k in range(4)}
    assert belonging._overlaps(same, Counter()) == ((frozenset(same), 2.0),)
    assert belonging._overlaps({"p": [node("a")], "q": [node("b")]}, Counter()) == ()


def test_the_problem(plain: Snapshot) -> None:
    where = field(plain)
    pending = sharer(1, gpus=2, job=job(1, submit_s=NOW_S - 100, Account="physics"))
    there = running(2, "fast", {"f0": (0,)}, Account="physics")
    runs = Sharer(there, {"fast": 4.0}, 1, "?", 100.0)
    other = sharer(3, job=job(3, user="eve", submit_s=NOW_S + 60))
    made = belonging.problem_of(where, [pending, runs, other], 2.0, NOW_S)
    columns = where.site.names
    fast = [k for k, column in enumerate(columns) if column.partition == "fast" and not column.spread]
    slow = [k for k, column in enumerate(columns) if column.partition == "slow" and not column.spread]
    assert made.throughput[0, fast] == pytest.approx(4.0) and made.throughput[0, slow] == pytest.approx(1.0)
    spread = [k for k, column in enumerate(columns) if column.partition == "fast" and column.spread]
    assert made.throughput[0, spread] == pytest.approx(2.0) and not made.throughput[1, slow].any()
    assert made.scale.tolist() == [2.0, 1.0, 1.0] and made.age_s.tolist() == [100.0, 60.0, 0.0]
    assert made.remaining == pytest.approx([3600.0 * 1.0, 100.0 * 4.0, 3600.0 * 1.0])
    assert set(made.held.tolist()) == {-1}  # where a job runs gives it no claim
    assert made.entity.tolist() == [0, 0, 1] and made.entity_weight.tolist() == [1.0, 1.0]


def test_without_accounts_each_user_is_an_entity(plain: Snapshot) -> None:
    """Slurm shows (null) for the account of every job where it keeps no accounts."""
    mine, hers = (sharer(k, job=job(k, user=user, Account="(null)")) for k, user in enumerate(("u", "eve")))
    made = belonging.problem_of(field(plain), [mine, hers], 1.7, NOW_S)
    assert made.entity.tolist() == [0, 1] and made.entity_weight.size == 2


def test_shares_by_partition(plain: Snapshot) -> None:
    where = field(plain)
    n = len(where.site.names)
    shares = np.zeros((3, n))
    for k, column in enumerate(where.site.names):
        shares[0, k] = 0.1 if column.partition == "fast" else 0.0
    pair = PairShare(
        1, 2, np.array([0.25 if c.partition == "slow" and not c.spread else 0.0 for c in where.site.names])
    )
    found = belonging.by_partition(where, Allocation(shares, pairs=(pair,)), [0, 2])
    per_partition = n // 2
    assert found[0]["fast"] == pytest.approx(0.1 * per_partition) and found[0]["slow"] == 0.0
    assert found[1]["slow"] == pytest.approx(0.25 * per_partition / 2)


def test_who_gains_most_belongs_on_the_fast_partition(plain: Snapshot) -> None:
    where = field(plain)
    keen = [sharer(k, speed={"slow": 1.0, "fast": 8.0}) for k in range(4)]
    even = [sharer(k, speed={"slow": 1.0, "fast": 1.1}) for k in range(4, 8)]
    made = belonging.problem_of(where, [*keen, *even], 1.7, NOW_S)
    found = belonging.by_partition(where, STEADY["gavel:max-sum"](made), range(8))
    fast = [shares.get("fast", 0.0) for shares in found]
    assert min(fast[:4]) > max(fast[4:]), found


@pytest.mark.parametrize("policy", STEADY)
@pytest.mark.parametrize(
    "sharers",
    [
        [sharer(1, speed={})],
        [sharer(1, speed={"slow": 0.0, "fast": 0.0}), sharer(2)],
        [sharer(1, gpus=64), sharer(2)],
        [sharer(1, speed={"slow": 1e-9, "fast": 1e9}), sharer(2, speed={"slow": 1e9, "fast": 1e-9})],
        [sharer(1, run_s=0.0)],
    ],
)
def test_odd_jobs_end_no_tick(plain: Snapshot, policy: str, sharers: list[Sharer]) -> None:
    where = field(plain)
    made = belonging.problem_of(where, sharers, 1.7, NOW_S)
    found = belonging.by_partition(where, STEADY[policy](made), range(len(sharers)))
    assert all(-1e-9 <= share <= 1 + 1e-9 for shares in found for share in shares.values())
