# SPDX-License-Identifier: MIT
"""Ask Slurm before palsub imports the code that reads the answer, or its own command line: Slurm works meanwhile."""

from __future__ import annotations

import os
import stat

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.files import slurm_conf
from slurm_pal.base.light import Mapping, Sequence, suppress
from slurm_pal.slurm import question, told
from slurm_pal.submit.processes import runner

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.slurm.client import SlurmClient
    from slurm_pal.submit.argv import CommandLine
    from slurm_pal.submit.script import Script

_SIGNS = ("gpu", "gres", "tres", "-G")
_VARIABLES = ("SBATCH_GPUS", "SBATCH_GRES", "SBATCH_TRES")
_LEFT = ("hold", "begin", "dependency", "clusters", "het-group", "test-only")
"""With these options Slurm chooses in any case (decide/request.py)."""
_NEVER = ("--pal-off", "--pal-help", "--help", "--usage", "--version", *(f"--{name}" for name in _LEFT))
_SCRIPT_BYTES = 1 << 14
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

    def client(self, timeout_s: float) -> SlurmClient:
        """Who reads the answer, and gives it so much time."""
        from slurm_pal.slurm.cli import CliClient

        self.run.timeout_s = timeout_s
        return CliClient(self.run, asked=self.question, conf=slurm_conf())

    def end(self) -> None:
        """The answer is no longer wanted."""
        self.run.end()


def likely(line: CommandLine, script: Script | None, environment: Mapping[str, str]) -> bool:
    """Whether the job seems to ask for GPUs; a wrong guess costs slurmctld some small requests, or us some ms."""
    if line.has(*_LEFT):
        return False
    words = [*(name for name, _ in line.options), *(script.words if script else ())]
    return any(sign in word for word in words for sign in _SIGNS) or any(map(environment.get, _VARIABLES))


def early(words: Sequence[str], environment: Mapping[str, str]) -> Asked:
    """As `likely`, by the look of the words, before it is known what they mean. What fails here is tried again."""
    asked = Asked()
    if environment.get("SLURM_PAL_OFF", "0") in ("", "0") and not any(word.startswith(_NEVER) for word in words):
        script = "".join(map(_text, words))
        if any(sign in text for text in (*words, script) for sign in _SIGNS) or any(map(environment.get, _VARIABLES)):
            with suppress(SlurmError):
                asked.begin(any(word.startswith("--reserv") for word in words))
    return asked


def _text(word: str) -> str:
    """The lines of a file with #SBATCH in them, if a word is its name: it may be the script."""
    try:
        if word.startswith("-") or not stat.S_ISREG(os.stat(word).st_mode):
            return ""
        with open(word, encoding="utf-8", errors="replace") as stream:
            return "".join(line for line in stream.read(_SCRIPT_BYTES).split("\n") if line.startswith("#SBATCH"))
    except (OSError, ValueError):
        return ""
