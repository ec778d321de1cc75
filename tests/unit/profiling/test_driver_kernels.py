# SPDX-License-Identifier: MIT
"""Numerics of every kernel, run on the host from the source that the PTX is made of."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.profiling.driver import backend as module
from slurm_pal.profiling.driver import check, reference, vendor
from slurm_pal.profiling.driver.reference import Real
from slurm_pal.profiling.node import inputs
from slurm_pal.profiling.node.benchmarks import Benchmark, by_id
from slurm_pal.profiling.node.devices import DeviceError

from ..driver_double.machine import Machine, Quiet, compiled, cublas, machine

__all__ = ["compiled", "cublas", "machine"]

SHAPES = check.SHAPES | {"hbm_triad": "3x64KiB", "hbm_copy": "2x64KiB"}


def small(name: str) -> Benchmark:
    return by_id(name)._replace(shape=SHAPES[name])


@pytest.mark.parametrize("name", sorted(check.CHECKS))
@pytest.mark.usefixtures("cublas")
def test_on_ampere(machine: Machine, name: str) -> None:
    if name in module.ALONE:
        machine.reset(capability=module.ALONE[name].least)
    peers = machine.devices[1:] if by_id(name).peers else ()
    findings = check.check(machine.backend(), machine.devices[0], small(name), peers)
    assert [f for f in findings if not f.good] == []
    assert findings
    assert machine.double.double_conflicts() == 0


@pytest.mark.parametrize("name", ["gemm_bf16", "gemm_fp64", "gemm_fp32", "gemm_bf16_wgmma"])
def test_copies_may_come_as_early_as_they_can(machine: Machine, name: str) -> None:
    """The double makes asynchronous copies as late as it may, unless told otherwise: both must do."""
    machine.reset(capability=90)
    machine.double.double_eager(1)
    assert all(f.good for f in check.check(machine.backend(), machine.devices[0], small(name)))


@pytest.mark.parametrize("capability", [100, 103])
@pytest.mark.parametrize(("copies", "products"), [(1, 0), (0, 1), (1, 1)])
def test_products_into_tensor_memory_may_come_early_and_late(
    machine: Machine, capability: int, copies: int, products: int
) -> None:
    machine.reset(capability=capability)
    machine.double.double_eager(copies)
    machine.double.double_hasty(products)
    for shape in ("256x384x160", "512x128x256"):
        spec = by_id("gemm_bf16_tcgen05")._replace(shape=shape)
        assert all(f.good for f in check.check(machine.backend(), machine.devices[0], spec) if f.what == "product")


def test_products_into_tensor_memory_need_rows_for_both(machine: Machine) -> None:
    machine.reset(capability=100)
    with pytest.raises(DeviceError, match="128x128x32; wanted multiples of 256 rows, 128 columns, and 32 between"):
        machine.backend().prepare(machine.devices[0], by_id("gemm_bf16_tcgen05")._replace(shape="128x128x32"))


def test_on_volta_all_that_it_has(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.reset(capability=70)
    monkeypatch.setattr(check, "SHAPES", SHAPES)
    assert check.run(machine.backend(), machine.devices[0])
    said = capsys.readouterr().out
    assert "gemm_tf32       not here: no tf32 before compute capability 8.0 (this is 7.0)" in said
    assert "WRONG" not in said
    assert "p2p             not here: it needs another GPU" in said
    for name in ("gemm_fp16", "gemm_fp32", "gemm_fp64"):
        assert f"{name}       product" in said


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command on the machine: exit code, standard output and error."""
    monkeypatch.setattr(check, "SHAPES", SHAPES)
    monkeypatch.setattr(module, "LIBRARY", machine.path)
    monkeypatch.setattr(module, "_nvml", lambda: Quiet(machine.devices))
    monkeypatch.setattr(check, "open_backend", lambda setting: module.open_backend(setting) and machine.backend())
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "9")  # both are set anew, and so undone

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["check", *words])
        with pytest.raises(SystemExit) as ended:
            check.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


def test_the_command_names_what_is_wrong(machine: Machine, command: Command) -> None:
    machine.reset(capability=70)
    machine.fail("hbm_triad", 719)
    code, said, _ = command("1", "--bench", "hbm_triad,hbm_copy,launch_latency")
    assert code == Exit.HARDWARE and machine.devices[1].uuid in said
    assert "hbm_triad       FAILED: " in said and "unspecified launch failure" in said
    assert "go on with --bench hbm_copy,launch_latency" in said and "hbm_copy        a as b" not in said
    machine.heal()
    code, said, _ = command("1", "--bench", "hbm_copy,hbm_triad")
    assert code == Exit.OK and "hbm_copy        a as b" in said and "gemm" not in said


def test_the_command_goes_on_after_an_error_that_is_no_fault(machine: Machine, command: Command) -> None:
    machine.fail("hbm_triad", 2)
    code, said, _ = command("--bench", "hbm_triad,hbm_copy")
    assert code == Exit.HARDWARE
    assert "hbm_triad       FAILED: " in said and "hbm_copy        a as b" in said and "go on with" not in said


def test_the_command_copies_between_all_gpus(machine: Machine, command: Command) -> None:
    machine.reset(devices=3)
    code, said, _ = command("1", "--bench", "p2p,allreduce")
    assert code == Exit.OK
    assert "p2p             target as source, GPU 0 " in said and "target as source, GPU 2 " in said
    assert "allreduce       sum 3 of 3 " in said
    first = machine.devices[1].uuid
    assert os.environ["CUDA_VISIBLE_DEVICES"].split(",") == [first, machine.devices[0].uuid, machine.devices[2].uuid]
    machine.double.double_peers(2)  # what is copied does not arrive
    code, said, _ = command("1", "--bench", "p2p,allreduce")
    assert code == Exit.HARDWARE and said.count("WRONG") == 5


def test_the_command_where_it_cannot_run(machine: Machine, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and the exit code that the manual gives."""
    assert command("7") == (Exit.MISSING, "", "check: there is no GPU 7 here that answers; there are: 0, 1\n")
    assert command("--bench", "gather")[0] == Exit.USAGE
    machine.fail("cuInit", 999)
    code, said, error = command()
    assert code == Exit.HARDWARE and said.count("\n") == 1
    assert error.startswith("check: cuInit: ") and "/dev/nvidia-uvm" in error and error.count("\n") == 1
    monkeypatch.setattr(module, "LIBRARY", "/no/libcuda.so.1")
    code, said, error = command()
    assert (code, said) == (Exit.MISSING, "")
    assert error.startswith("check: backend driver cannot be used: libcuda cannot be loaded (/no/libcuda.so.1: ")


@pytest.mark.parametrize("shape", ["1152x256x32", "128x128x32", "128x128x64", "2304x256x32"])
def test_products_of_other_sizes(machine: Machine, shape: str) -> None:
    """More rows of tiles than one band has, and fewer steps of k than tiles under way."""
    machine.reset(capability=90)
    names = ["gemm_bf16", "gemm_fp64", "gemm_bf16_wgmma"]
    if shape == "2304x256x32":
        machine.reset(capability=100)
        names = ["gemm_bf16_tcgen05"]
    for name in names:
        spec = by_id(name)._replace(shape=shape)
        assert all(f.good for f in check.check(machine.backend(), machine.devices[0], spec) if f.what == "product")


def test_the_warpgroup_product_is_for_hopper_alone(machine: Machine) -> None:
    spec = small("gemm_bf16_wgmma")
    for capability in (80, 100):
        machine.reset(capability=capability)
        why = machine.backend().unable(machine.devices[0], spec)
        assert why == f"gemm_bf16_wgmma needs compute capability 9.0 (this is {capability / 10:.1f})"
        with pytest.raises(DeviceError, match="no kernel for bf16 on this device"):
            machine.backend().prepare(machine.devices[0], spec)
    machine.reset(capability=90)
    assert machine.backend().unable(machine.devices[0], spec) == ""
    machine.double.double_driver(11080)
    assert "needs a driver for CUDA 12.0 or later" in machine.backend().unable(machine.devices[0], spec)
    with pytest.raises(DeviceError, match="install a newer driver"):
        machine.backend().prepare(machine.devices[0], spec)


def test_the_product_into_tensor_memory_is_for_two_architectures(machine: Machine) -> None:
    spec = small("gemm_bf16_tcgen05")
    for capability in (90, 120):
        machine.reset(capability=capability)
        why = machine.backend().unable(machine.devices[0], spec)
        assert why == f"gemm_bf16_tcgen05 needs compute capability 10.0 or 10.3 (this is {capability / 10:.1f})"
        with pytest.raises(DeviceError, match="no kernel for bf16 on this device"):
            machine.backend().prepare(machine.devices[0], spec)
    for capability in (100, 103):
        machine.reset(capability=capability)
        machine.double.double_driver(12080)
        assert "needs a driver for CUDA 12.9 or later" in machine.backend().unable(machine.devices[0], spec)
        with pytest.raises(DeviceError, match="install a newer driver"):
            machine.backend().prepare(machine.devices[0], spec)
    machine.fail("cuFuncSetAttribute", 1)
    machine.double.double_driver(12090)
    with pytest.raises(DeviceError, match="cuFuncSetAttribute"):
        machine.backend().prepare(machine.devices[0], spec)


@pytest.mark.usefixtures("cublas")
@pytest.mark.parametrize(
    ("call", "code", "why"),
    [
        ("cublasCreate_v2", 3, r"cublasCreate_v2: status 3 \(no memory\)"),
        ("cublasGemmEx", 13, r"cublasGemmEx: status 13 \(the product failed\)"),
        ("cublasGemmEx", 99, r"cublasGemmEx: status 99 \(see the cuBLAS reference\)"),
        ("cublasGetProperty", 7, "a value that it does not take"),
    ],
)
def test_what_cublas_refuses_is_said_and_nothing_stays(machine: Machine, call: str, code: int, why: str) -> None:
    machine.fail(call, code)
    with pytest.raises(DeviceError, match=why):
        check.check(machine.backend(), machine.devices[0], small("gemm_bf16_cublas"))


@pytest.mark.usefixtures("cublas")
def test_the_release_of_cublas_and_what_steers_it_are_reported_for_its_product_alone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = machine.backend()
    steering = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NVIDIA_TF32_OVERRIDE": "0"}
    for word, value in (steering | {"CUBLAS_LOGINFO_DBG": "1"}).items():
        monkeypatch.setenv(word, value)
    assert backend.lacks(machine.devices[0], small("gemm_bf16_cublas")) == ""
    for name, libs in (("gemm_bf16_cublas", {"cublas": "12.4.5"} | steering), ("gemm_bf16", {})):
        kernel = backend.prepare(machine.devices[0], small(name))
        assert kernel.libs == libs
        kernel.close()


def test_without_cublas_it_is_left_out(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "LIBRARIES", ("libcublas.so.none",))
    why = machine.backend().lacks(machine.devices[0], small("gemm_bf16_cublas"))
    assert why.startswith("cuBLAS cannot be loaded (libcublas.so.none: ") and why.endswith("or set LD_LIBRARY_PATH")
    with pytest.raises(DeviceError, match="cuBLAS cannot be loaded"):
        machine.backend().prepare(machine.devices[0], small("gemm_bf16_cublas"))


def test_a_wrong_product_is_found(machine: Machine) -> None:
    kernel = machine.backend().prepare(machine.devices[0], small("gemm_bf16"))
    try:
        kernel.run_block(1)
        good = check._read(kernel, "c")
        assert check.distance(np.roll(good, 1, axis=0), good) > 0.1
        assert not check.Deviation("c", check.distance(good * math.nan, good), 1.0).good
    finally:
        kernel.close()


def philox(counter: tuple[int, ...], key: int) -> list[int]:
    """Philox4x32-10 after the paper's definition, one block of four words."""
    c = list(counter)
    keys = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ keys[0], p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ keys[1], p0 & 0xFFFFFFFF]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def drawn(machine: Machine, name: str, array: str) -> Real:
    kernel = machine.backend().prepare(machine.devices[0], small(name))
    try:
        return check._read(kernel, array)
    finally:
        kernel.close()


def test_numbers_are_philox_made_normal(machine: Machine) -> None:
    # Known answers that the generator's authors publish.
    assert philox((0, 0, 0, 0), 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox((0xFFFFFFFF,) * 4, 2**64 - 1) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    source = drawn(machine, "pcie_h2d", "source")
    for quad in (0, 1, 1000):
        r = philox((quad, 0, 0, 0), inputs.seed("pcie_h2d"))
        for pair in range(2):
            radius = math.sqrt(-2 * math.log(((r[2 * pair] >> 8) + 1) / 2**24))
            turn = 2 * math.pi * (r[2 * pair + 1] >> 8) / 2**24
            wanted = [radius * math.cos(turn), radius * math.sin(turn)]
            assert source[4 * quad + 2 * pair :][:2] == pytest.approx(wanted, abs=1e-5)


def test_numbers_are_the_same_in_every_run_and_differ_between_arrays(machine: Machine) -> None:
    first, again = (drawn(machine, "hbm_triad", "b") for _ in range(2))
    assert (first == again).all()
    other = drawn(machine, "hbm_triad", "c")
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.05


def test_all_of_fp64_is_random(machine: Machine) -> None:
    """Zeros in the last bits would draw less power."""
    last = drawn(machine, "gemm_fp64", "a").view(np.uint64).ravel() & np.uint64(0xFFFFF)
    assert len(set(last.tolist())) > 0.95 * last.size


def test_the_reference_of_the_block_has_the_gradients_of_its_output() -> None:
    draw = np.random.default_rng(1)
    width, size = 16, (2, 5, 16)
    x, above = draw.normal(size=size), draw.normal(size=size)
    shapes = {"w_qkv": (3 * width, width), "w_out": (width, width), "w_up": (64, width), "w_down": (width, 64)}
    weights = {name: draw.normal(size=shape) / 4 for name, shape in shapes.items()}
    found = reference.block(x, above, weights, 2, 1e-5)

    def along(name: str, direction: Real) -> float:
        step = 1e-6

        def value(sign: float) -> float:
            moved = weights | ({name: weights[name] + sign * step * direction} if name != "x" else {})
            at = x + sign * step * direction if name == "x" else x
            return float((reference.block(at, above, moved, 2, 1e-5)["y"] * above).sum())

        return (value(1) - value(-1)) / (2 * step)

    for name, value in {"x": x, **weights}.items():
        direction = draw.normal(size=value.shape)
        assert along(name, direction) == pytest.approx(float((found[f"d_{name}"] * direction).sum()), rel=1e-6)


def test_the_block_sees_no_later_token() -> None:
    draw = np.random.default_rng(2)
    x = draw.normal(size=(1, 6, 8))
    shapes = {"w_qkv": (24, 8), "w_out": (8, 8), "w_up": (32, 8), "w_down": (8, 32)}
    weights = {name: draw.normal(size=shape) for name, shape in shapes.items()}
    moved = x.copy()
    moved[0, 4, 0] += 1.0  # not the whole row: the norm would take that away
    before, after = (reference.block(at, x, weights, 2, 1e-5)["y"] for at in (x, moved))
    assert (before[0, :4] == after[0, :4]).all()
    assert (before[0, 4:] != after[0, 4:]).all()
