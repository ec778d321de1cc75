# SPDX-License-Identifier: MIT
"""What a job of two nodes runs on each: emulated GPUs, and torch.distributed by a double."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from slurm_pal.emulation.gpus import EmuSwitch, draw_registry, write_registry
from slurm_pal.profiling import node as on_node
from slurm_pal.profiling.node import between
from slurm_pal.profiling.node.between import AllReduces, Ranks
from slurm_pal.profiling.sweep import results
from slurm_pal.store.level_ratios import level_ratios, read_drop

NODES = ("n0", "n1", "n2", "n3")


@pytest.fixture
def lab(tmp_path: Path) -> Callable[..., int]:
    """Runs one node's part of a job on a lab of two leaves."""
    registry = draw_registry(NODES, 4, 1)
    registry.network = (
        EmuSwitch(2.0, NODES[:2]), EmuSwitch(2.0, NODES[2:]), EmuSwitch(3.5, NODES),
    )  # fmt: skip
    write_registry(str(tmp_path / "reg"), registry)

    def run(pair: str, node: str, job: int = 7, backend: str = "emu", **environ: str) -> int:
        with pytest.MonkeyPatch.context() as patch:
            inside = {
                "SLURMD_NODENAME": node, "SLURM_JOB_ID": str(job), "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
                "SLURM_NTASKS": "2", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
            } | environ  # fmt: skip
            for name, value in inside.items():
                patch.setenv(name, value)
            words = ["--sweep=s", f"--spool={tmp_path}", f"--nodes={pair}", "--gpus=4", f"--backend={backend}"]
            return between.main([*words, f"--registry={tmp_path / 'reg'}", "--wall-scale=0"])

    return run


def test_emulated_nodes_tell_what_the_network_costs(lab: Callable[..., int], tmp_path: Path) -> None:
    for job, pair in enumerate(("n0,n1", "n0,n3"), start=1):
        for node in pair.split(","):
            assert lab(pair, node, job) == 0
    drops = sorted((tmp_path / "incoming").iterdir())
    assert [path.name for path in drops] == [f"s.{name}.pair.json" for name in ("n0.1", "n0.2", "n1.1", "n3.2")]
    rows = [read_drop(str(path)) for path in drops]
    found = level_ratios(rows, lambda nodes: 1 if "n1" in nodes else 2, rows[0].ts, 0.0)
    assert found[1].ratio == pytest.approx(2.0, rel=0.03) and found[2].ratio == pytest.approx(3.5, rel=0.03)
    assert found[1].small_ratio == pytest.approx(2.0, rel=0.03)
    spool = [str(tmp_path / "incoming")]
    assert results.pair_trouble(spool, "s", ("n0", "n3"), 2) == ""
    assert results.pair_trouble(spool, "s", ("n0", "n3"), 1) == "result of n0: of n0,n1"
    assert results.pair_trouble(spool, "s", ("n1", "n0"), 2) == "no result of n1"
    drops[-1].write_text("{}")
    assert results.pair_trouble(spool, "s", ("n0", "n3"), 2).startswith("result of n3: schema None")


def test_what_cannot_be_measured(lab: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for run, said in (
        (lambda: lab("n0,n1", "n2"), "node 'n2' is not one of n0,n1"),
        (lambda: lab("n0,n1", "n0", SLURM_PROCID=""), "was not started by srun"),
        (lambda: lab("n0,n1", "n0", backend="driver"), "backend driver has no all-reduce between nodes"),
        (lambda: lab("n0,n7", "n0"), "not all of 4 GPUs are there"),
    ):
        assert run() != 0
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
    assert lab("n0,n1", "n0", SLURM_LOCALID="1") == 0 and not (tmp_path / "incoming").exists()


class FakeDist(ModuleType):
    """torch.distributed of one process, alone: it notes what it is asked for."""

    def __init__(self, seconds: dict[object, float]) -> None:
        super().__init__("torch.distributed")
        self.ReduceOp = SimpleNamespace(MAX="max")
        self.ProcessGroup = object
        self.opened: list[Any] = []
        self.groups: list[tuple[int, ...]] = []
        self.closed = 0
        self.seconds = seconds
        self.clock_s = 0.0

    def init_process_group(self, backend: str, **words: object) -> None:
        self.opened.append((backend, words))

    def is_initialized(self) -> bool:
        return bool(self.opened)

    def destroy_process_group(self) -> None:
        self.closed += 1

    def new_group(self, ranks: list[int]) -> tuple[int, ...]:
        self.groups.append(tuple(ranks))
        return tuple(ranks)

    def barrier(self, group: object) -> None: ...

    def all_reduce(self, data: Sequence[float], op: str = "sum", group: object = None) -> None:
        if len(data) > 1:
            self.clock_s += self.seconds[group] * len(data) / (between.LARGE_BYTES // 4)


class FakeTensor(list[float]):
    def item(self) -> float:
        return self[0]


@pytest.fixture
def dist(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDist]:
    made = FakeDist({(2, 3): 0.1, None: 0.3})
    torch = ModuleType("torch")
    body = {
        "distributed": made, "float32": "f", "device": lambda kind, index=0: SimpleNamespace(type=kind),
        "cuda": SimpleNamespace(is_available=lambda: False), "tensor": lambda row, device: FakeTensor(row),
        "ones": lambda count, dtype, device: range(count),
    }  # fmt: skip
    for name, value in body.items():
        setattr(torch, name, value)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", made)
    forget()
    yield made
    forget()


def forget() -> None:
    """Have the module imported anew: it holds on to the double that it finds."""
    if sys.modules.pop("slurm_pal.profiling.node.torch_between", None) is not None:
        del on_node.torch_between  # type: ignore[attr-defined]


def test_processes_find_each_other_by_what_srun_gives(dist: FakeDist, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_pal.profiling.node import torch_between

    monkeypatch.setattr(torch_between.time, "monotonic", lambda: dist.clock_s)
    place = between.ranks_of({
        "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "71234",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
    })  # fmt: skip
    assert place == Ranks(3, 4, 1, "10.0.0.7", 21234)
    found = torch_between.measured(place, 2)
    (opened,) = dist.opened
    assert opened[0] == "gloo" and opened[1]["init_method"] == "tcp://10.0.0.7:21234"
    assert (opened[1]["rank"], opened[1]["world_size"]) == (3, 4) and dist.closed == 1
    assert dist.groups == [(0, 1), (2, 3)]
    share = between.SMALL_BYTES / between.LARGE_BYTES
    assert found == pytest.approx(AllReduces(0.1, 0.3, 0.1 * share, 0.3 * share))


def test_what_torch_says_is_one_line(dist: FakeDist, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_pal.profiling.node import torch_between

    def broken(ranks: list[int]) -> tuple[int, ...]:
        raise RuntimeError("NCCL error\nunhandled system error")

    monkeypatch.setattr(dist, "new_group", broken)
    with pytest.raises(torch_between.DeviceError, match="all-reduce of process 0: NCCL error unhandled"):
        torch_between.measured(Ranks(0, 4, 0, "10.0.0.7", 1), 2)
    assert dist.closed == 1


def test_all_launch_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[int] = []

    def run_block(launches: int) -> float:
        blocks.append(launches)
        return launches * 0.01

    assert between.per_launch_s(run_block, lambda seconds: 0.05) == pytest.approx(0.01)
    assert blocks == [3, 1, *[4] * 7]
