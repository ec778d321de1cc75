# SPDX-License-Identifier: MIT
"""`--pal-avoid-slow`: who wants it, with which bound, and the decision with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slurm_pal.base.hostlist import fold
from slurm_pal.base.light import Any
from slurm_pal.decide.avoid import Avoided, avoided, joined, without
from slurm_pal.decide.case import Decision, Settings
from slurm_pal.decide.request import Request
from slurm_pal.slurm.client import Overview
from slurm_pal.store.snapshot import Snapshot
from slurm_pal.submit.choice import Choice, is_bound, variable


def asked(
    chosen: Choice, environment: Mapping[str, str], directives: tuple[tuple[str, str], ...], site: float,
    warnings: list[str],
) -> AvoidsSlow | None:  # fmt: skip
    """By command line, script, environment; None where nobody asks. `site` is the bound where none is stated.

    SLURM_PAL_AVOID_SLOW is a bound, or 1 for the site's. A wrong value outside the command line causes a warning and
    is ignored.
    """
    if chosen.avoid_slow is not None:
        return AvoidsSlow(float(chosen.avoid_slow or site), "--pal-avoid-slow", warnings)
    for origin, said in (
        ("#PAL avoid-slow", dict(directives).get("avoid-slow")),
        ("$SLURM_PAL_AVOID_SLOW", variable(environment, "AVOID_SLOW") or None),
    ):
        if said == "" or (said == "1" and origin[0] == "$"):
            return AvoidsSlow(site, origin, warnings)
        if said is not None and is_bound(said):
            return AvoidsSlow(float(said), origin, warnings)
        if said == "0":
            return None
        if said is not None:
            warnings.append(f"{origin} = {said!r} is not a slowdown between 1.0 and 10, such as 1.10, and is ignored")
    return None


class AvoidsSlow:
    """What a user wants, and after `decided` what became of it."""

    def __init__(self, bound: float, origin: str, warnings: list[str]) -> None:
        self._origin, self._warnings = origin, warnings
        self._found, self._looked = Avoided(bound), False

    def decided(
        self, request: Request, decide: Callable[[Request], Decision], overview: Overview, snapshot: Snapshot,
        sensitivity: str, settings: Settings, clearer: str,
    ) -> Decision:  # fmt: skip
        """The decision with the slow nodes excluded, if some are left; plain Slurm's choice is that without."""
        plain, self._looked = decide(request), True
        found = self._found = avoided(request, overview, snapshot, sensitivity, settings, self._found.bound, clearer)
        if found.refused or not found.nodes:
            return plain
        made = joined(decide(without(request, found)), found, request)
        return made._replace(plain=plain.plain)

    def shown(self, decided: Decision) -> dict[str, Any]:
        """For the record. Where the job is submitted as written, one warning says why."""
        found = self._found
        if not self._looked:  # the choice was left to Slurm before
            found = found._replace(
                refused=decided.reason.removeprefix("left to Slurm: ") or "nothing is known of its GPUs"
            )
        if found.refused:
            self._warnings.append(f"{self._origin}: submitted as written, since {found.refused}")
        return {
            "bound": found.bound, "from": self._origin, "nodes": fold(list(found.nodes)) if found.nodes else "",
            "slowest": round(found.slowest, 4), "failing": found.failing, "seconds": round(found.lease_s, 1),
            "refused": found.refused,
        }  # fmt: skip
