# SPDX-License-Identifier: MIT
"""The sbatch options in force for one submission, from their three sources.

sbatch's precedence: command line, then SBATCH_* variables, then #SBATCH lines.
"""

from __future__ import annotations

from slurm_pal.base.errors import UsageError
from slurm_pal.base.light import Mapping
from slurm_pal.decide.request import Conflict, Request, read
from slurm_pal.submit.argv import CommandLine
from slurm_pal.submit.options_table import ENVIRONMENT
from slurm_pal.submit.script import Script

MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


def build(line: CommandLine, environment: Mapping[str, str], script: Script | None) -> Request:
    """Merge the three sources and read the job's shape. Never raises: doubts end in `leave`."""
    try:
        if line.unsure:
            raise Conflict(line.unsure)
        if line.hetjob or (script and script.hetjob):
            raise Conflict("heterogeneous job: its components are placed together by Slurm")
        if script and script.doubt:
            raise Conflict(script.doubt)
        merged = merge(line, environment, script)
        if script and script.foreign and "ignore-pbs" not in merged:
            raise Conflict("the script has #PBS or #BSUB lines, which sbatch translates itself")
        return read(merged, submitted=True)
    except (Conflict, UsageError) as reason:
        return Request(leave=str(reason))


def merge(line: CommandLine, environment: Mapping[str, str], script: Script | None) -> dict[str, str]:
    """The sbatch options in force: name -> value.

    Raises Conflict if the directives cannot be read, or ask for memory in two ways.
    """
    own = script.options if script and not line.has("wrap") else None
    if own and script and (own.unsure or own.end != len(script.words)):
        raise Conflict(own.unsure or f"#SBATCH {script.words[own.end]}: not an option")
    variables = [(name, environment[key]) for key, name in ENVIRONMENT.items() if environment.get(key)]
    if environment.get("SLURM_HOSTFILE"):
        variables.append(("nodefile", environment["SLURM_HOSTFILE"]))
    merged: dict[str, str] = {}
    for layer in (own.found if own else (), variables, line.options):
        merged.update(layer)
    _one_memory(merged, {name for name, _ in variables} - {name for name, _ in line.options})
    return merged


def _one_memory(merged: dict[str, str], of_variables: set[str]) -> None:
    """Leave what counts of --mem and the like. `of_variables`: options whose value a variable gave.

    sbatch refuses two that were typed, on the command line and in the script; one that was typed overrules variables.
    """
    asked = [name for name in MEMORY if name in merged]
    typed = [name for name in asked if name not in of_variables]
    if len(typed or asked) > 1:
        raise Conflict("sbatch accepts only one of --mem, --mem-per-cpu and --mem-per-gpu")
    for name in asked:
        if typed and name not in typed:
            del merged[name]
