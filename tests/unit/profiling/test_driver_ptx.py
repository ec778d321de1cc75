# SPDX-License-Identifier: MIT
"""The PTX that ships: made of the present source, readable by old drivers, and as the Python side thinks."""

from __future__ import annotations

import ctypes
import re
import shutil
from pathlib import Path

import pytest

from slurm_pal.base.errors import MissingPackageError, PalError
from slurm_pal.profiling.driver import generate, ptx
from slurm_pal.profiling.driver.arguments import KERNELS
from slurm_pal.profiling.node.devices import DeviceError


@pytest.mark.parametrize("target", ptx.TARGETS, ids=lambda t: t.file)
def test_was_made_of_the_present_source_for_old_drivers(target: ptx.Target) -> None:
    text = ptx.text(target)
    assert f"// source {ptx.source_hash()}\n" in text, "run python -m slurm_pal.profiling.driver.generate"
    assert re.search(r"^// compiler Cuda compilation tools, release \d+\.\d+", text, re.MULTILINE)
    declared = {"hopper.ptx": ("8.0", "sm_90a"), "blackwell.ptx": ("8.8", "sm_100f")}
    version, named = declared.get(target.file, ("7.0", f"sm_{target.least}"))
    assert f"\n.version {version}\n" in text and f"\n.target {named}\n" in text


def test_every_source_file_is_in_the_hash() -> None:
    folder = Path(ptx.__file__).resolve().parent
    assert {p.name for p in folder.glob("*.h")} | {p.name for p in folder.glob("*.cu")} == set(ptx.SOURCES)


@pytest.mark.parametrize("target", ptx.TARGETS, ids=lambda t: t.file)
def test_kernels_take_what_python_passes(target: ptx.Target) -> None:
    for name, text in ptx.entries(ptx.text(target)).items():
        head = text[: text.index("{")]
        sizes = re.findall(rf"{name}_param_\d+\[(\d+)\]", head)
        threads = re.search(r"\.maxntid (\d+)", head)
        argument = KERNELS[name].argument
        assert [int(s) for s in sizes] == ([ctypes.sizeof(argument)] if argument else [])
        assert threads and int(threads[1]) == KERNELS[name].threads


def test_a_kernel_for_one_architecture_changes_the_method_of_its_own_benchmark_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, before = ptx._read, (ptx.version(), ptx.own_version("gemm_bf16_wgmma"), ptx.own_version("gemm_bf16_tcgen05"))
    assert ptx.own_version("gemm_bf16_nt") == {} and [*before[2]] == ["blackwell.ptx"]

    def changed(file: str, more: str) -> tuple[str, dict[str, str], dict[str, str]]:
        monkeypatch.setattr(ptx, "_read", lambda name: read(name) + more * (name == file))
        ptx.text.cache_clear()
        ptx.version.cache_clear()
        return ptx.version(), ptx.own_version("gemm_bf16_wgmma"), ptx.own_version("gemm_bf16_tcgen05")

    try:
        assert changed("blackwell.ptx", "// a remark\n") == before
        assert changed("blackwell.ptx", "ret;\n")[:2] == before[:2] != changed("volta.ptx", "ret;\n")[:2]
        assert changed("blackwell.ptx", "ret;\n")[2] != before[2]
    finally:
        monkeypatch.undo()
        ptx.text.cache_clear()
        ptx.version.cache_clear()


def versions() -> str:
    """As the table of registers names all files."""
    return ptx.version() + "".join(f", {file} {own}" for name in KERNELS for file, own in ptx.own_version(name).items())


def fits(text: str) -> dict[str, int]:
    """Kernel -> how many of its blocks must fit on a multiprocessor at once, where it says so."""
    found = {name: re.search(r"\.minnctapersm (\d+)", own) for name, own in ptx.entries(text).items()}
    return {name: int(match[1]) for name, match in found.items() if match and int(match[1]) > 1}


def test_products_without_room_for_two_blocks_ask_for_it() -> None:
    ampere, volta = (fits(ptx.text(ptx.target_for(capability))) for capability in (80, 70))
    hopper = ptx.target_with("gemm_bf16_wgmma")
    assert fits(ptx.text(hopper)) == {"gemm_bf16_wgmma": 3}
    assert fits(ptx.text(ptx.target_with("gemm_bf16_tcgen05"))) == {"gemm_bf16_tcgen05": 2}
    assert ampere == {"gemm_fp32": 2} and volta == {"gemm_fp32": 2, "gemm_fp16_wmma": 2}


def test_the_table_of_registers_is_of_these_kernels() -> None:
    whole = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    table = whole.partition("<!-- made by tests/bench/kernel_occupancy.py -->")[2].partition("<!-- end of the table")[0]
    assert f"PTX {versions()}." in table, "run tests/bench/kernel_occupancy.py --write docs/benchmarks.md"
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [*KERNELS]
    assert "Spills: none, by any of them." in table


def test_every_kernel_is_in_a_file() -> None:
    found = {name for target in ptx.TARGETS for name in ptx.entries(ptx.text(target))}
    assert found == set(KERNELS)


def test_a_module_holds_what_is_asked_for() -> None:
    module = ptx.module(ptx.TARGETS[0], frozenset({"hbm_copy", "empty"}))
    assert module.endswith(b"\0")
    assert set(ptx.entries(module.decode())) == {"hbm_copy", "empty"}
    assert module.startswith(b"// Kernels")
    assert len(module) < 10_000


@pytest.mark.parametrize(
    ("capability", "file"),
    [(70, "volta.ptx"), (75, "volta.ptx"), (80, "ampere.ptx"), (90, "ampere.ptx"), (120, "ampere.ptx")],
)
def test_each_device_has_its_file(capability: int, file: str) -> None:
    assert ptx.target_for(capability).file == file


def test_the_warpgroup_product_has_a_module_of_its_own() -> None:
    names = frozenset({"gemm_bf16_wgmma", "normal_fill"})
    found = {mine: text for mine, text in ptx.modules(90, names)}
    own, rest = frozenset({"gemm_bf16_wgmma"}), frozenset({"normal_fill"})
    assert set(found) == {own, rest}
    assert b".target sm_90a\n" in found[own] and found[own].count(b".visible .entry") == 1
    assert b".target sm_80\n" in found[rest]
    assert [mine for mine, _ in ptx.modules(100, rest)] == [rest]
    with pytest.raises(KeyError):
        [*ptx.modules(100, names)]


@pytest.mark.parametrize("capability", [100, 103])
def test_the_product_into_tensor_memory_has_a_module_of_its_own(capability: int) -> None:
    name = frozenset({"gemm_bf16_tcgen05"})
    found = dict(ptx.modules(capability, name | {"normal_fill"}))
    assert set(found) == {name, frozenset({"normal_fill"})}
    assert b".target sm_100f\n" in found[name] and b".extern .shared .align 1024" in found[name]
    for other in (90, 110, 120):
        with pytest.raises(KeyError):
            [*ptx.modules(other, name)]


def test_an_old_device_has_none() -> None:
    with pytest.raises(DeviceError, match=r"7\.0 or later; this is 6\.1"):
        ptx.target_for(61)


def test_tidy_keeps_the_code_and_writes_our_header() -> None:
    name = "_INTERNAL_0a1b2c3d_10_kernels_cu_4e5f607111gemm"
    raw = (
        f"//\n// by nvcc\n.version 9.0\n.target sm_75\n.address_size 64\n\n\tadd.s32 %r1; // sum\n.shared {name}[8];\n"
    )
    text = generate.tidy(raw, ptx.TARGETS[-1], "nvcc 1.2", "feed")
    assert text.splitlines()[1:] == [
        "// source feed",
        "// compiler nvcc 1.2",
        ".version 7.0",
        ".target sm_70",
        ".address_size 64",
        "add.s32 %r1;",
        ".shared kernels11gemm[8];",
    ]


def test_without_nvcc_the_command_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    monkeypatch.setattr("sys.argv", ["generate", "--nvcc", str(nvcc), "--into", str(tmp_path)])
    with pytest.raises(MissingPackageError, match=r"nvcc cannot be run \(No such file.*\): install the CUDA toolkit"):
        generate.main()
    nvcc.write_text("#!/bin/sh\n", encoding="ascii")
    with pytest.raises(MissingPackageError, match=r"nvcc cannot be run \(Permission denied\)"):
        generate.main()
    nvcc.chmod(0o755)
    with pytest.raises(PalError, match="nvcc --version names no release: is it nvcc"):
        generate.main()
    assert not list(tmp_path.glob("*.ptx"))


def test_where_the_files_cannot_be_written_the_command_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "make", lambda target, nvcc, source: "")
    monkeypatch.setattr(generate, "assemble", lambda text, architecture, ptxas: True)
    monkeypatch.setattr("sys.argv", ["generate", "--into", str(tmp_path / "none")])
    with pytest.raises(PalError, match=r"none/ampere.ptx cannot be written: No such file.*; name a folder with --into"):
        generate.main()


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("target", ptx.TARGETS, ids=lambda t: t.file)
def test_the_command_gives_what_ships(target: ptx.Target) -> None:
    text = generate.make(target, "nvcc", Path(ptx.__file__).resolve().parent / "kernels.cu")
    compiler = next(line for line in text.splitlines() if line.startswith("// compiler"))
    if compiler not in ptx.text(target):
        pytest.skip(f"nvcc here is another one than that of the files ({compiler})")
    assert text == ptx.text(target)
