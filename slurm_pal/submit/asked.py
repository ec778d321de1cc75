# SPDX-License-Identifier: MIT
"""The question to Slurm: asked before palsub loads the code that reads the answer, and who reads it."""

from __future__ import annotations

from slurm_pal.base.files import slurm_conf
from slurm_pal.base.light import Mapping
from slurm_pal.slurm import question, told
from slurm_pal.submit.early import LEFT, SIGNS, VARIABLES
from slurm_pal.submit.processes import runner

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.base.config import Config
    from slurm_pal.slurm.client import SlurmClient
    from slurm_pal.submit.argv import CommandLine
    from slurm_pal.submit.early import Begun
    from slurm_pal.submit.script import Script

LONGEST_S = 30.0


class Asked:
    """At most one question, and the runner that asks it."""

    def __init__(self, begun: Begun | None = None) -> None:
        """`begun`: one that has been begun already."""
        self.run = runner(LONGEST_S)
        self.question: question.Question | None = None
        self._rest: Config | None = None
        if begun is not None:
            squeue, scontrol = self.run.adopt(begun.squeue), self.run.adopt(begun.scontrol)
            self.question = question.Question(begun.kinds, told.FEW, begun.word, begun.part, squeue, scontrol)

    def by_rest(self, config: Config) -> None:
        """Ask slurmrestd, when the answer is wanted, and not Slurm's commands."""
        self.end()
        self._rest = config

    def begin(self, reservations: bool) -> None:
        """Ask, unless that has been done. Raises SlurmError."""
        if self._rest is not None:
            return
        kinds = told.kinds(reservations)
        if self.question is None or self.question.kinds != kinds:
            self.run.end()
            self.question = question.begin(self.run, kinds, told.FEW)

    def client(self, timeout_s: float) -> SlurmClient:
        """Who reads the answer, and gives it so much time."""
        if self._rest is not None:
            from slurm_pal.slurm.backend import connect

            return connect(self._rest, timeout_s)
        from slurm_pal.slurm.cli import CliClient

        self.run.timeout_s = timeout_s
        return CliClient(self.run, asked=self.question, conf=slurm_conf())

    def end(self) -> None:
        """The answer is no longer wanted."""
        self.run.end()


def likely(line: CommandLine, script: Script | None, environment: Mapping[str, str]) -> bool:
    """Whether the job seems to ask for GPUs; a wrong guess costs slurmctld some small requests, or us some ms."""
    if line.has(*LEFT):
        return False
    words = [*(name for name, _ in line.options), *(script.words if script else ())]
    return any(sign in word for word in words for sign in SIGNS) or any(map(environment.get, VARIABLES))
