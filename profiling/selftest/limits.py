# SPDX-License-Identifier: MIT
"""What a card should reach: peaks by model, and which share of them our kernels and the libraries' get.

docs/selftest.md shows these tables and where each number comes from; a test compares the page with them.
A model that is not here is judged only by what needs no peak.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_pal.profiling.node import inputs
from slurm_pal.profiling.node.benchmarks import Benchmark


class CardPeaks(NamedTuple):
    """One row: dense peaks of a model by its maker's datasheet; None where it has no such units or states none."""

    name: str
    pattern: str  # of the name that the driver gives, after the maker's words
    kind: str  # a key of SHARES
    half: float | None  # bf16 and fp16, TFLOP/s
    tf32: float | None
    fp32: float | None
    fp64: float | None  # with its matrix units, where it has some for it
    memory_gb_s: float

    def peak(self, spec: Benchmark) -> tuple[float | None, str]:
        """The peak that bounds a benchmark, in its unit, and what it is called; (None, "") where none does."""
        if spec.unit == "TFLOP/s":
            by_dtype = {"bf16": self.half, "fp16": self.half, "tf32": self.tf32, "fp32": self.fp32, "fp64": self.fp64}
            return by_dtype.get(spec.dtype), f"{spec.dtype} peak"
        if spec.unit == "steps/s":
            peak = self.half and self.half * 1e12 / block_flop(spec.shape)
            return peak, f"{spec.dtype} peak over {block_flop(spec.shape) / 1e12:.2f} TFLOP a step"
        if spec.unit == "GB/s" and not spec.is_health:
            return self.memory_gb_s, "memory peak"
        return None, ""


class Shares(NamedTuple):
    """The least share of the peak that a healthy card of a kind reaches: with our kernels, with a library."""

    products: tuple[float | None, float | None]  # on matrix units: bf16, fp16, tf32
    plain: tuple[float | None, float | None]  # fp32 and fp64
    memory: float
    gpm: bool = False  # NVML's performance monitoring answers on it


CARDS = (
    CardPeaks("V100 SXM2", r"V100-SXM[23]-.*", "Volta", 125.0, None, 15.7, 7.8, 900.0),
    CardPeaks("V100 PCIe", r"V100-PCIE-.*", "Volta", 112.0, None, 14.0, 7.0, 900.0),
    CardPeaks("V100S PCIe", r"V100S-PCIE-.*", "Volta", 130.0, None, 16.4, 8.2, 1134.0),
    CardPeaks("T4", r"T4", "Turing", 65.0, None, 8.1, None, 320.0),
    CardPeaks("A100 SXM4 40 GB", r"A100-SXM4-40GB", "Ampere HBM", 312.0, 156.0, 19.5, 19.5, 1555.0),
    CardPeaks("A100 SXM4 80 GB", r"A100-SXM4-80GB", "Ampere HBM", 312.0, 156.0, 19.5, 19.5, 2039.0),
    CardPeaks("A100 PCIe 40 GB", r"A100-PCIE-40GB", "Ampere HBM", 312.0, 156.0, 19.5, 19.5, 1555.0),
    CardPeaks("A100 PCIe 80 GB", r"A100 80GB PCIe", "Ampere HBM", 312.0, 156.0, 19.5, 19.5, 1935.0),
    CardPeaks("A30", r"A30", "Ampere HBM", 165.0, 82.0, 10.3, 10.3, 933.0),
    CardPeaks("A40", r"A40", "Ampere, Ada GDDR", 149.7, 74.8, 37.4, None, 696.0),
    CardPeaks("A10", r"A10", "Ampere, Ada GDDR", 125.0, 62.5, 31.2, None, 600.0),
    CardPeaks("L4", r"L4", "Ampere, Ada GDDR", 121.0, 60.5, 30.3, None, 300.0),
    CardPeaks("L40", r"L40", "Ampere, Ada GDDR", None, None, 90.5, None, 864.0),
    CardPeaks("L40S", r"L40S", "Ampere, Ada GDDR", 362.0, 183.0, 91.6, None, 864.0),
    CardPeaks("H100 SXM", r"H100 80GB HBM3", "Hopper", 989.0, 494.0, 67.0, 67.0, 3350.0),
    CardPeaks("H100 PCIe", r"H100 PCIe", "Hopper", 756.0, 378.0, 51.0, 51.0, 2039.0),
    CardPeaks("H100 NVL", r"H100 NVL", "Hopper", 835.0, 417.0, 60.0, 60.0, 3900.0),
    CardPeaks("H200 SXM", r"H200", "Hopper", 989.0, 494.0, 67.0, 67.0, 4800.0),
    CardPeaks("H200 NVL", r"H200 NVL", "Hopper", 836.0, 418.0, 60.0, 60.0, 4800.0),
    CardPeaks("GH200 96 GB", r"GH200 480GB", "Hopper", 989.0, 494.0, 67.0, 67.0, 4000.0),
    CardPeaks("B200", r"B200", "Blackwell", 2250.0, 1125.0, 80.0, 40.0, 8000.0),
    CardPeaks("MI210", r"MI210\b.*", "CDNA", 181.0, None, 45.3, 45.3, 1638.0),
    CardPeaks("MI250X, one die", r"MI250X\b.*", "CDNA", 191.5, None, 47.9, 47.9, 1638.0),
    CardPeaks("MI300X", r"MI300X\b.*", "CDNA", 1307.0, 653.0, 163.4, 163.4, 5300.0),
)

SHARES = {
    "Volta": Shares((0.30, 0.60), (0.45, 0.60), 0.78),
    "Turing": Shares((0.25, 0.30), (0.30, 0.40), 0.70),
    "Ampere HBM": Shares((0.45, 0.55), (0.45, 0.60), 0.78),
    "Ampere, Ada GDDR": Shares((0.30, 0.35), (0.30, 0.30), 0.70),
    "Hopper": Shares((0.35, 0.50), (0.45, 0.50), 0.78, gpm=True),
    "Blackwell": Shares((None, 0.50), (0.40, 0.50), 0.78, gpm=True),
    "CDNA": Shares((None, 0.40), (None, 0.40), 0.65),
}
BLOCK_SHARES = (0.10, 0.20)
"""Of a transformer block: scores in memory (ours) and launches cost what a product does not."""

OVER_PEAK = 1.1
"""Datasheets take a clock that a card may exceed: above this share of a peak, time or work is counted wrongly."""
OVER_MEMORY = 1.01
EMULATED = 1.1
"""An emulated GPU is within this factor of the benchmark's nominal value; its healthy population spreads by 2 %."""
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""PCI Express, one lane in one direction, after the line code, by generation."""
LINK_SHARE = 0.5
LATENCY_US = (0.5, 20.0)
CAP_SHARE = 0.3
BLOCK_CV_PCT = 0.5
REPEAT_CV_PCT = {"A": 0.5, "C": 0.2}
LIBRARY_SHARE = (0.4, 1.05)
"""On Hopper the least share of the peak with our kernels is 35 %, beside a library that reaches 80 to 90 % of it."""
LOOK_MS, LOOK_P95_MS = 20.0, 60.0
SAMPLER_EFFECT_PCT, SAMPLER_LATENCY_PCT = 0.2, 3.0
SAMPLER_CPU_PCT = 5.0
LEAST_HZ = 8.0

_MAKER = re.compile(r"^(NVIDIA |Tesla |AMD |Instinct )*")


def card(vendor: str, model: str) -> CardPeaks | None:
    """The row of a model by the name that its driver gives; None for a model that is not in the table."""
    if vendor not in ("nvidia", "amd"):
        return None
    own = _MAKER.sub("", model)
    return next((row for row in CARDS if re.fullmatch(row.pattern, own)), None)


def block_flop(shape: str) -> float:
    """FLOP of one step of the transformer block, forward and backward; attention counts as causal, by half."""
    found = inputs.block(shape)
    tokens = found.batch * found.seq
    products = 24.0 * tokens * found.width**2  # qkv, out, up and down: 12 d^2 weights
    attention = 4.0 * tokens * found.seq * found.width / 2.0
    return 3.0 * (products + attention)


class Wanted(NamedTuple):
    """The range that a value should be in; without one, why it is not judged."""

    low: float | None = None
    high: float | None = None
    source: str = ""
    unknown: str = ""


def wanted(spec: Benchmark, vendor: str, model: str, backend: str, link: tuple[int, int] | None) -> Wanted:
    """The range of a benchmark's value on this card with this backend; `link` is its PCIe generation and lanes."""
    if vendor == "emu":
        return Wanted(spec.nominal / EMULATED, spec.nominal * EMULATED, "emulator: nominal value, 10 % either way")
    if spec.is_health:
        return _health(spec, link)
    row = card(vendor, model)
    if row is None:
        return Wanted(unknown=f"no peaks are known for model {model!r}")
    peak, what = row.peak(spec)
    if peak is None:
        return Wanted(unknown=f"no {what or 'peak for it'} is known for {row.name}")
    ours, library = _shares(row, spec)
    least = ours if backend == "driver" else library
    over = OVER_MEMORY if what == "memory peak" else OVER_PEAK
    source = f"{row.name}: {what} {peak:.5g} {spec.unit} by datasheet, "
    if least is None:
        return Wanted(None, over * peak, source + "no estimate of a share")
    return Wanted(least * peak, over * peak, source + f"at least {100 * least:.0f} % of it by estimate")


def _shares(row: CardPeaks, spec: Benchmark) -> tuple[float | None, float | None]:
    shares = SHARES[row.kind]
    if spec.unit == "steps/s":
        return BLOCK_SHARES
    if spec.unit == "GB/s":
        return shares.memory, shares.memory
    return shares.plain if spec.dtype in ("fp32", "fp64") else shares.products


def _health(spec: Benchmark, link: tuple[int, int] | None) -> Wanted:
    if spec.id == "launch_latency":
        return Wanted(*LATENCY_US, "estimate")
    if not spec.id.startswith("pcie_"):
        return Wanted(unknown="its links are not known")
    if link is None or link[0] not in LANE_GB_S:
        return Wanted(unknown="the generation and lanes of its PCIe link are not known")
    full = LANE_GB_S[link[0]] * link[1]
    source = f"PCIe {link[0]} x{link[1]}: {full:.3g} GB/s by specification, half of it by estimate"
    return Wanted(LINK_SHARE * full, None, source)
