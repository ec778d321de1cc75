# SPDX-License-Identifier: MIT
"""The word that an observer puts into the comment of its job, `pal:obs=`.

Slurm lets only a job's owner change its comment, so a reader knows whose word it is without
a check; it is believed only of that user's jobs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_pal.base import marks
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.sensitivity.behaviour import Behaviour, Traits
from slurm_pal.sensitivity.cascade import PROBE, TELEMETRY, Evidence

KEY = "obs"
_TRAITS = {"duty": "held by the power cap", "clk": "clock", "pw": "power", "dram": "memory", "tensor": "pipes"}
"""Fields of Traits, in order: the word's names for them, and what people read."""
_DIGEST = re.compile(r"[0-9a-f]{16}")
_SHARE = re.compile(r"\d(\.\d{1,3})?")
_SECONDS = re.compile(r"\d{1,10}")


class Observed(NamedTuple):
    """What an observer says of its job."""

    sensitivity: str
    confidence: float
    active_s: float
    at_s: float  # Unix s, by the node's clock
    digest: str = ""  # of the script
    stage: str = TELEMETRY  # or PROBE
    traits: Traits = Traits()


def of(seen: Behaviour, at_s: float, digest: str = "", stage: str = TELEMETRY) -> Observed:
    """What to say of a job that behaved this way."""
    return Observed(seen.sensitivity, seen.confidence, seen.active_s, at_s, digest, stage, seen.traits)


def word(said: Observed) -> dict[str, str]:
    """The values of the word; traits that are not known are left out."""
    told = {name: f"{value:.2f}" for name, value in zip(_TRAITS, said.traits, strict=True) if value is not None}
    first = {
        KEY: said.sensitivity,
        "c": f"{said.confidence:.2f}",
        "s": f"{said.active_s:.0f}",
        "at": f"{said.at_s:.0f}",
    }
    digest = {"sd": said.digest} if said.digest else {}
    return first | told | digest | ({"st": said.stage} if said.stage != TELEMETRY else {})


def read(comment: str) -> Observed | None:
    """The word in a comment; None without one, or for one that no observer writes."""
    said = marks.read(comment, KEY)
    if said.get(KEY) not in SENSITIVITY_CLASSES:
        return None
    shares = {name: said.get(name, "") for name in ("c", *_TRAITS)}
    if not _SHARE.fullmatch(shares["c"]) or any(text and not _SHARE.fullmatch(text) for text in shares.values()):
        return None
    if not _SECONDS.fullmatch(said.get("s", "")) or not _SECONDS.fullmatch(said.get("at", "")):
        return None
    digest = said.get("sd", "")
    traits = Traits(*(float(shares[name]) if shares[name] else None for name in _TRAITS))
    return Observed(
        said[KEY], min(1.0, float(shares["c"])), float(said["s"]), float(said["at"]),
        digest if _DIGEST.fullmatch(digest) else "", PROBE if said.get("st") == PROBE else TELEMETRY,
        traits,
    )  # fmt: skip


def evidence(seen: Observed) -> Evidence:
    """The same as evidence, with what was measured in one line."""
    told = zip(_TRAITS.values(), seen.traits, strict=True)
    parts = [f"{name} {value:.0%}" for name, value in told if value is not None]
    why = f"{seen.active_s:.0f} s of its own GPUs: {', '.join(parts) or 'no sensors'}"
    return Evidence(seen.stage, seen.sensitivity, seen.confidence, why, seen.active_s)
