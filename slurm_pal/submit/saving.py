# SPDX-License-Identifier: MIT
"""Save before the end: a job makes its checkpoint some time before its time limit, and is requeued to go on from it.

Slurm's own clock gives the notice (`--signal`), the wrapper does the rest in the job: no daemon is needed.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_pal.base.errors import UsageError
from slurm_pal.base.light import suppress
from slurm_pal.base.numbers import digits
from slurm_pal.decide.alternatives import duration_s
from slurm_pal.decide.request import Conflict
from slurm_pal.slurm.parse import seconds
from slurm_pal.submit.argv import CommandLine
from slurm_pal.submit.choice import NO_SAVING, Choice, Moving, Saving, variable
from slurm_pal.submit.options import merge
from slurm_pal.submit.script import Script

TIMES = 10
"""So often a job is continued if its user states no number."""
EARLY_S = 60
"""By so much Slurm may give notice too early (sbatch(1), --signal)."""
LEAST_S, MOST_S = 10, 65_535
"""What may be asked for; more than that Slurm's --signal does not take."""


def saving(
    chosen: Choice, environment: Mapping[str, str], line: CommandLine, script: Script | None, moves: Moving,
    most_times: int, warnings: list[str],
) -> Saving:  # fmt: skip
    """What the job is to do before its time limit. A wrong value outside the command line causes a warning.

    `moves` is how it makes checkpoints, `most_times` how often at most the site continues a job. Raises UsageError
    for what the command line asks for and cannot be.
    """
    named = dict(script.pal) if script else {}
    sources = (
        ("--pal-save-before", chosen.save_before),
        ("$SLURM_PAL_SAVE_BEFORE", variable(environment, "SAVE_BEFORE")),
        ("#PAL save-before", named.get("save-before")),
    )
    where, text = next(((where, value) for where, value in sources if value is not None), ("", ""))
    times_from, said = "--pal-save-times", chosen.save_times
    if said is None:
        times_from, said = "#PAL save-times", named.get("save-times")
    if text == "0" or (not where and said is None):
        return NO_SAVING
    try:
        if not where:
            raise UsageError(f"{times_from} is for jobs with --pal-save-before TIME")
        return _checked(where, text, times_from, said, line, environment, script, moves, most_times, warnings)
    except UsageError as error:
        if (where or times_from).startswith("--"):
            raise
        warnings.append(f"{error}; ignored")
        return NO_SAVING


def _checked(
    where: str, text: str, times_from: str, said: str | None, line: CommandLine, environment: Mapping[str, str],
    script: Script | None, moves: Moving, most_times: int, warnings: list[str],
) -> Saving:  # fmt: skip
    before_s = seconds(text) if ":" in text or "-" in text else duration_s(text)
    if before_s is None or not LEAST_S <= before_s <= MOST_S:
        raise UsageError(f"{where} {text!r} is not a time from {LEAST_S} to {MOST_S} s, such as 300, 5m or 5:00")
    times = TIMES if said is None else digits(said) or 0
    if not times:
        raise UsageError(f"{times_from} {said!r} is not a whole number from 1, such as 3")
    if not moves.checkpoint:
        raise UsageError(f"{where} needs --pal-checkpoint CMD: the job must be able to save")
    merged: dict[str, str] = {}
    with suppress(Conflict):  # then the job cannot be requeued at all, which others say
        merged = merge(line, environment, script)
    own = merged.get("signal") or environment.get("SBATCH_SIGNAL", "")
    if own:
        raise UsageError(f"{where}: the job has --signal={own}, and Slurm gives one notice only: leave one of them out")
    limit_s = seconds(merged.get("time", ""))
    if limit_s and before_s + EARLY_S >= limit_s:
        early = f"notice comes up to {EARLY_S} s early"
        raise UsageError(f"{where} {text!r} leaves no time: the limit is {merged['time']}, and {early}")
    if times > most_times:
        if said is not None or not most_times:
            warnings.append(f"the job is continued at most {most_times} times: submit.save_times_max")
        times = most_times
    return Saving(int(before_s), times, "array" in merged) if times else NO_SAVING
