# SPDX-License-Identifier: MIT
"""Ask Slurm before palsub imports the code that reads the answer: Slurm works while Python imports."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_pal.slurm import question, told
from slurm_pal.submit.argv import CommandLine
from slurm_pal.submit.processes import runner
from slurm_pal.submit.script import Script

_SIGNS = ("gpu", "gres", "tres", "-G")
_VARIABLES = ("SBATCH_GPUS", "SBATCH_GRES", "SBATCH_TRES")
_LEFT = ("hold", "begin", "dependency", "clusters", "het-group", "test-only")
"""With these options Slurm chooses in any case (decide/request.py)."""
LONGEST_S = 30.0


class Asked:
    """At most one question, and the runner that asks it."""

    def __init__(self) -> None:
        self.run = runner(LONGEST_S)
        self.question: question.Question | None = None

    def begin(self, reservations: bool) -> None:
        """Ask, unless that has been done. Raises SlurmError."""
        kinds = question.kinds(reservations)
        if self.question is None or self.question.kinds != kinds:
            self.run.end()
            self.question = question.begin(self.run, kinds, told.FEW)

    def end(self) -> None:
        """The answer is no longer wanted."""
        self.run.end()


def likely(line: CommandLine, script: Script | None, environment: Mapping[str, str]) -> bool:
    """Whether the job seems to ask for GPUs; a wrong guess costs slurmctld some small requests, or us some ms."""
    if line.has(*_LEFT):
        return False
    words = [*(name for name, _ in line.options), *(script.words if script else ())]
    return any(sign in word for word in words for sign in _SIGNS) or any(map(environment.get, _VARIABLES))
