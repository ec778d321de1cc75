# SPDX-License-Identifier: MIT
"""Limits by model: the page shows the table, names of drivers find their row, and every share is a share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_pal.profiling.node.benchmarks import BENCHMARKS, by_id
from slurm_pal.profiling.selftest import limits

PAGE = (Path(__file__).parents[3] / "docs" / "selftest.md").read_text()


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:g}"


def lines(head: str) -> list[list[str]]:
    """Cells of the table that begins with this header line."""
    block = PAGE.partition(head)[2].partition("\n\n")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines() if line.startswith("|")
    ][1:]


def test_the_page_has_the_cards_of_the_table() -> None:
    wanted = [
        [row.name, row.kind, *(number(v) for v in (row.half, row.tf32, row.fp32, row.fp64, row.memory_gb_s))]
        for row in limits.CARDS
    ]
    assert lines("| model | kind | bf16, fp16 | tf32 | fp32 | fp64 | memory, GB/s |") == wanted


def test_the_page_has_the_shares_of_the_table() -> None:
    wanted = [
        [kind, *(percent(v) for v in (*row.products, *row.plain, row.memory)), "yes" if row.gpm else "no"]
        for kind, row in limits.SHARES.items()
    ]
    assert (
        lines("| kind | bf16, fp16, tf32: driver | library | fp32, fp64: driver | library | memory | GPM |") == wanted
    )


@pytest.mark.parametrize(
    ("vendor", "model", "name"),
    [
        ("nvidia", "Tesla V100-SXM2-32GB", "V100 SXM2"),
        ("nvidia", "NVIDIA A100-SXM4-80GB", "A100 SXM4 80 GB"),
        ("nvidia", "A100-SXM4-40GB", "A100 SXM4 40 GB"),
        ("nvidia", "NVIDIA A100 80GB PCIe", "A100 PCIe 80 GB"),
        ("nvidia", "NVIDIA L40S", "L40S"),
        ("nvidia", "NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("nvidia", "NVIDIA H200", "H200 SXM"),
        ("nvidia", "NVIDIA H200 NVL", "H200 NVL"),
        ("amd", "AMD Instinct MI300X", "MI300X"),
        ("amd", "AMD Instinct MI250X / MI250", "MI250X, one die"),
        ("nvidia", "NVIDIA H20", ""),
        ("nvidia", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", ""),
        ("emu", "A30", ""),
    ],
)
def test_a_drivers_name_finds_its_row(vendor: str, model: str, name: str) -> None:
    row = limits.card(vendor, model)
    assert (row.name if row else "") == name


def test_each_row_is_possible() -> None:
    assert {row.kind for row in limits.CARDS} == limits.SHARES.keys()
    assert len({row.name for row in limits.CARDS}) == len(limits.CARDS)
    for row in limits.CARDS:
        known = [v for v in (row.fp64, row.fp32, row.tf32, row.half) if v is not None]
        assert known == sorted(known) and 200 < row.memory_gb_s < 10000
        for spec in BENCHMARKS:
            for backend in ("driver", "torch"):
                found = limits.wanted(spec, "nvidia", row.name.replace("SXM2", "SXM2-16GB"), backend, (4, 16))
                assert found.low is None or found.high is None or found.low < found.high


def test_what_a_share_is_of() -> None:
    """A step of the block: products and causal attention, forward and twice backward."""
    assert limits.block_flop("d2048-seq2048-batch4") == pytest.approx(2.68e12, rel=0.01)
    found = limits.wanted(by_id("tblock"), "nvidia", "NVIDIA H200", "driver", None)
    assert found.low == pytest.approx(0.1 * 989e12 / limits.block_flop(by_id("tblock").shape))
    found = limits.wanted(by_id("gemm_tf32"), "nvidia", "Tesla V100-SXM2-16GB", "driver", None)
    assert found.unknown == "no tf32 peak is known for V100 SXM2"
    found = limits.wanted(by_id("gemm_bf16"), "nvidia", "NVIDIA B200", "driver", None)
    assert found.low is None and found.high == pytest.approx(1.1 * 2250)
    found = limits.wanted(by_id("pcie_h2d"), "nvidia", "?", "driver", (5, 16))
    assert found.low == pytest.approx(31.5, rel=0.01)
    assert limits.wanted(by_id("pcie_h2d"), "nvidia", "?", "driver", None).unknown


def test_what_the_page_says_of_single_limits() -> None:
    for text in (
        f"at most {100 * limits.OVER_PEAK:g} %", f"at most {100 * limits.OVER_MEMORY:g} %",
        f"{limits.REPEAT_CV_PCT['A']:g} %", f"{limits.REPEAT_CV_PCT['C']:g} %",
        f"{100 * limits.CAP_SHARE:g} % of the looks",
        f"{limits.LATENCY_US[0]:g} to {limits.LATENCY_US[1]:g} us",
        f"{limits.LOOK_MS:g} ms", f"{limits.LOOK_P95_MS:g} ms",
        f"{limits.SAMPLER_EFFECT_PCT:g} %", f"{limits.SAMPLER_CPU_PCT:g} % of a core",
        f"{limits.LIBRARY_SHARE[0]:g} to {limits.LIBRARY_SHARE[1]:g}",
        f"{100 * limits.BLOCK_SHARES[0]:g} % with our kernels, {100 * limits.BLOCK_SHARES[1]:g} % with a library",
    ):  # fmt: skip
        assert text in re.sub(r"\s+", " ", PAGE), text
