# SPDX-License-Identifier: MIT
"""A line at the end of a job's output, on which GPUs it ran (`--pal-note`): who wants one, and the command for it.

The wrapper around the script (wrapper.sh) starts the command with the job and shows its line at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from slurm_pal.submit.choice import Choice, variable

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.base.config import Config

MODULE = "slurm_pal.cli.note"


def wanted(
    chosen: Choice, environment: Mapping[str, str], directives: tuple[tuple[str, str], ...], warnings: list[str]
) -> bool:
    """Whether the job gets the line: by command line, environment, script. SLURM_PAL_NOTE=0 overrides the script.

    A wrong value outside the command line causes a warning and is ignored.
    """
    if chosen.note:
        return True
    for origin, said in (
        ("$SLURM_PAL_NOTE", variable(environment, "NOTE")),
        ("#PAL note", dict(directives).get("note")),
    ):
        if said in ("0", "1") or (said == "" and origin[0] == "#"):
            return said != "0"
        if said:
            warnings.append(f"{origin} = {said!r} is neither 0 nor 1 and is ignored")
    return False


def command(config: Config) -> tuple[str, ...]:
    """The words that print the line in the job; nothing in its environment changes what they do."""
    return (config.text("profile", "python") or sys.executable, "-I", "-m", MODULE)
