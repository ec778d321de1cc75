# SPDX-License-Identifier: MIT
"""Emulated GPU models: which kernels meet the power cap on each, and how fast its GPUs warm up.

At the cap the clock gives way, each GPU's by another amount, and the GPUs differ. Below it all run at their
highest clock and are nearly alike, however they would differ in a job that meets it. A name that is not listed
stands for the first model. Standard library only: payloads of jobs import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

DEFAULT_MODEL = "PAL Emulated GPU"
BELOW_CAP = 0.05
"""The share of a GPU's compute slowdown that is left below the power cap."""
SHARE = {"A": 1.0, "B": 0.35, "C": 0.01}
"""The share of a compute slowdown that work of each class feels, on most models."""
_DEFAULT_POWER = {"A": 1.0, "B": 0.6, "C": 0.27, "": 0.15}


class EmuModel(NamedTuple):
    """How one model behaves."""

    what: str
    power: Mapping[str, float] = {}  # benchmark or sensitivity class -> share of the power cap that it draws
    tau_s: tuple[float, float] = (20.0, 20.0)  # thermal time constant: the quickest and the slowest GPU
    feels: Mapping[str, float] = SHARE  # class -> share of a compute slowdown that it feels

    def power_share(self, benchmark: str, sensitivity: str) -> float:
        """What a kernel draws, as a share of the power cap; 1.0: it meets the cap."""
        known = self.power.get(benchmark, self.power.get(sensitivity))
        return _DEFAULT_POWER[sensitivity] if known is None else known

    def time_constant_s(self, place: float) -> float:
        """The thermal time constant of a GPU whose place among all is `place`, 0 to 1."""
        quick, slow = self.tau_s
        return quick + (slow - quick) * place


MODELS: dict[str, EmuModel] = {
    DEFAULT_MODEL: EmuModel("class A meets the power cap"),
    "PAL Emulated Cool": EmuModel("no kernel meets the power cap: measurements hide how GPUs differ", {"A": 0.8}),
    "PAL Emulated Half": EmuModel(
        "gemm_bf16, gemm_fp16 and gemm_tf32 stay below the power cap, gemm_fp32 meets it",
        {"gemm_bf16": 0.75, "gemm_fp16": 0.75, "gemm_tf32": 0.75},
    ),
    "PAL Emulated Hot": EmuModel(
        "class B meets the power cap as class A does: one class",
        {"B": 1.0},
        feels=SHARE | {"B": 1.0},
    ),
    "PAL Emulated Uneven": EmuModel("its GPUs settle at different times", tau_s=(6.0, 30.0)),
}
"""Model name -> how it behaves."""


def emulated_model(name: str) -> EmuModel:
    """How GPUs of this name behave."""
    return MODELS.get(name, MODELS[DEFAULT_MODEL])
