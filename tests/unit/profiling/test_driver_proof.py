# SPDX-License-Identifier: MIT
"""Kernels that no card has confirmed are tried in a process of their own, and only right ones are measured."""

from __future__ import annotations

import errno
import math
import subprocess
import time

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.profiling.driver import backend as module
from slurm_pal.profiling.driver import check, proof
from slurm_pal.profiling.node.benchmarks import Benchmark, by_id
from slurm_pal.profiling.node.measurement import agenda

from ..driver_double.machine import Machine, compiled, machine

__all__ = ["compiled", "machine"]

CAPABILITY = {"gemm_bf16_wgmma": 90, "gemm_bf16_tcgen05": 100}


@pytest.fixture(params=sorted(proof.UNPROVEN))
def spec(machine: Machine, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Benchmark:
    """An unproven benchmark on a machine that has its kernel, in this process and in the proof's."""
    name: str = request.param
    machine.reset(capability=CAPABILITY[name])
    monkeypatch.setenv("DOUBLE_CAPABILITY", str(CAPABILITY[name]))
    return by_id(name)._replace(shape="256x128x64")


def test_every_kernel_that_is_not_in_the_default_set_for_want_of_a_card_is_tried() -> None:
    assert proof.UNPROVEN == module.ALONE.keys() == CAPABILITY.keys()


def test_a_right_kernel_is_measured(machine: Machine, spec: Benchmark) -> None:
    assert machine.backend().lacks(machine.devices[1], spec) == ""


def test_a_wrong_kernel_is_left_out_and_accuses_no_gpu(
    machine: Machine, spec: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBLE_SPOIL", spec.id)
    rows, remarks = agenda(machine.backend(), machine.devices[0], (spec, by_id("hbm_copy")), 1)
    assert [row and row.id for row in rows] == [None, "hbm_copy"]
    said = remarks[spec.id]
    assert said.startswith(f"{spec.id} is not measured: its product of 256x384x160 is not that of gemm_bf16 (error ")
    assert machine.backend().unable(machine.devices[0], spec) == ""  # the check of the kernels still runs it


def test_a_fault_stays_in_the_process_of_the_trial(
    machine: Machine, spec: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBLE_BREAK", spec.id)
    backend = machine.backend()
    said = backend.lacks(machine.devices[0], spec)
    assert said.startswith(f"{spec.id} is not measured: its proof failed: ") and "unspecified launch failure" in said
    copy = by_id("hbm_copy")._replace(shape="2x64KiB")
    assert all(f.good for f in check.check(backend, machine.devices[0], copy))


def test_a_trial_without_end_is_ended(machine: Machine, spec: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "PATIENCE_S", -4.99)
    began_s = time.monotonic()
    said = proof.failure(machine.devices[0], spec, machine.path)
    assert said == f"{spec.id} is not measured: its proof did not end" and time.monotonic() - began_s < 5.0


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [(-14, "", "its proof took longer than 60 s"), (-11, "", "exit code -11"), (1, "one\ntwo\n", "two")],
)
def test_how_else_a_trial_may_end(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, code: int, said: str, why: str
) -> None:
    end = f"import os, sys; print({said!r}, end='', flush=True); "
    end += f"os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
    begin = subprocess.Popen
    monkeypatch.setattr(proof.subprocess, "Popen", lambda words, **more: begin([words[0], "-c", end], **more))
    spec = by_id("gemm_bf16_tcgen05")
    assert proof.failure(machine.devices[0], spec, machine.path) == f"{spec.id} is not measured: {why}"


def test_a_trial_that_cannot_begin(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof.sys, "executable", "/no/python")
    said = proof.failure(machine.devices[0], by_id("gemm_bf16_tcgen05"), machine.path)
    assert said.endswith(f"its proof cannot be started ({OSError(errno.ENOENT, 'No such file or directory').strerror})")


def test_a_proven_kernel_is_not_tried(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof.subprocess, "Popen", None)
    assert proof.failure(machine.devices[0], by_id("gemm_bf16"), machine.path) == ""


def test_the_command_says_what_it_cannot_find(machine: Machine) -> None:
    words = [proof.sys.executable, "-P", "-m", proof._MODULE, "GPU-none", "gemm_bf16_tcgen05", "256x128x64"]
    done = subprocess.run([*words, "--library", machine.path], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout.startswith("its proof failed: the driver shows 2 devices and not GPU-")
    done = subprocess.run([*words[:-2], "gemm_fp32", "1x1x1"], capture_output=True, text=True, check=False)
    assert done.returncode == Exit.USAGE and "invalid choice" in done.stderr


def test_rows_are_compared_from_all_parts_of_the_tiles() -> None:
    assert chosen(512, 128) == [*range(512)]
    for m in (8192, 16384):
        rows = chosen(m, m)
        assert len(rows) == 2**20 // m == len(set(rows)) and rows[0] < 256 and rows[-1] >= m - 256 and max(rows) < m
    assert len({row // 256 for row in chosen(8192, 8192)}) == 32  # each row of tiles
    assert len({row % 256 // 32 for row in chosen(8192, 8192)}) == 8  # each warp's lanes of both products


def chosen(rows: int, columns: int) -> list[int]:
    return [*proof.chosen_rows(rows, columns)]


def test_distance() -> None:
    one, two, minus, none = (
        proof.from_bf16(bits.to_bytes(2, "little"))[0] for bits in (0x3F80, 0x4000, 0xBF80, 0x7FC0)
    )
    assert (one, two, minus) == (1.0, 2.0, -1.0) and math.isnan(none)
    assert proof.distance([one, two], [one, two]) == 0.0
    assert proof.distance([one, minus], [one, two]) == 1.5
    for bad in ([one, none], [math.inf, two]):
        assert proof.distance(bad, [one, two]) == math.inf
    assert proof.distance([one], [0.0]) == math.inf
