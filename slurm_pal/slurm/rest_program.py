# SPDX-License-Identifier: MIT
"""How sbatch's stand-in is started, where slurm.backend is "rest": a Python that users' settings cannot change."""

from __future__ import annotations

import sys

from slurm_pal.base.light import NamedTuple

MODULE = "slurm_pal.submit.rest_sbatch"
NOT_BY_REST = "cannot be given"
"""In what the stand-in says where a job cannot be described: palsub's own words may be the cause."""

MAY_EXIST = "the job may exist"
"""In what it says where the answer was lost."""
BY_SBATCH = "submitted by sbatch: "
"""Before what it says where sbatch takes its place; what sbatch says comes after that line."""


class SbatchProgram(NamedTuple):
    """What submits: a file, and the words before sbatch's own."""

    path: str
    first: tuple[str, ...] = ("sbatch",)

    def argv(self, words: tuple[str, ...] | list[str]) -> list[str]:
        """The whole command for sbatch's words, the first of which is its name."""
        return [*self.first, *words[1:]]


def stand_in() -> SbatchProgram:
    """The program that submits through slurmrestd."""
    path = [place for place in sys.path if place]
    start = (
        f"import sys; sys.path = {path!r}; del sys.argv[:2]; from {MODULE} import main; sys.exit(main(sys.argv[1:]))"
    )
    own = sys.argv[0]  # it must not be taken for sbatch, under whatever name it was called
    return SbatchProgram(sys.executable, (sys.executable, "-I", "-S", "-X", "utf8", "-c", start, MODULE, own))
