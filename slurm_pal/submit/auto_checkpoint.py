# SPDX-License-Identifier: MIT
"""By which means a job is to save before it is moved, where its user leaves that to palsub or names a recipe.

The first that holds: the user's own command, the recipe of a known program, a transparent checkpoint where the site
has a place for it, a requeue from the start if the user allows one; else the job stays.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Set

from slurm_pal.base.errors import UsageError
from slurm_pal.base.light import NamedTuple, suppress
from slurm_pal.decide.request import Conflict
from slurm_pal.submit import recipes
from slurm_pal.submit.argv import CommandLine
from slurm_pal.submit.asked import likely
from slurm_pal.submit.choice import AUTO, NAMED, SITES_SAY, TRANSPARENT, Moving
from slurm_pal.submit.known import work_of
from slurm_pal.submit.options import merge
from slurm_pal.submit.recipes import Recipe
from slurm_pal.submit.script import SHELLS, Script, interpreter

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.base.config import Config

ANY: Set[str] = frozenset()
"""All recipes, among which to find one."""


class Means(NamedTuple):
    """What was found."""

    moving: Moving
    name: str = ""  # "command", "recipe gromacs", "transparent", "requeue", "none"
    why: str = ""
    recipe: Recipe | None = None
    file: str = ""  # that the user has named with the recipe

    @property
    def shown(self) -> dict[str, str]:
        """For the record."""
        return {"by": self.name, "why": self.why}


def wanted(
    asked: Moving, line: CommandLine, environment: Mapping[str, str], script: Script | None, config: Config
) -> Set[str] | None:
    """The recipes of which one is to be found for the job, ANY, or None; `asked` is what the user says."""
    if asked.left_to_palsub or asked.checkpoint or asked.auto is not None:
        return ANY if asked.left_to_palsub else None
    return _by_site(line, environment, script, config)


def _by_site(
    line: CommandLine, environment: Mapping[str, str], script: Script | None, config: Config
) -> Set[str] | None:
    """What the site wants for this job, which asks for GPUs: others are never moved."""
    accounts, qos, partitions, programs = (_names(config, key) for key in SITES_SAY)
    everywhere = config.text("submit", "checkpoint") == AUTO
    if not (everywhere or accounts or qos or partitions or programs) or not likely(line, script, environment):
        return None
    with suppress(Conflict):
        merged = merge(line, environment, script)
        own = {name for name in merged.get("partition", "").split(",") if name}

        def said(name: str, variable: str) -> str:
            return dict(line.options).get(name) or environment.get(variable) or merged.get(name, "")

        if everywhere or said("qos", "SBATCH_QOS") in qos or said("account", "SBATCH_ACCOUNT") in accounts:
            return ANY
        return ANY if own and own <= partitions else programs or None
    return None


def _names(config: Config, key: str) -> set[str]:
    return {name.strip() for name in config.text("submit", key).split(",")} - {""}


def found(
    asked: Moving, line: CommandLine, environment: Mapping[str, str], script: Script | None, config: Config,
    elastic: bool, among: Set[str], warnings: list[str],
) -> Means | None:  # fmt: skip
    """The means; None if the job runs no program of the recipes `among`, where these are not ANY.

    Raises UsageError for one that the user names and that there is not.
    """
    folder = config.text("submit", "recipes")
    if asked.checkpoint.startswith(NAMED):
        own, file = recipes.named(asked.checkpoint, folder, warnings)
        if lacks := _unfit(work_of(line, script), elastic, own):
            raise UsageError(f"checkpoint {asked.checkpoint!r}: {lacks}")
        return Means(asked, f"recipe {own.name}", "its user names it", own, file)
    if asked.transparent:
        from slurm_pal.submit import transparent

        transparent.checked(asked.checkpoint)
        if lacks := transparent.lacks(line, environment, script, elastic, config):
            raise UsageError(f"checkpoint {asked.checkpoint!r}: {lacks}")
        return Means(asked, "transparent", "its user names it")
    if asked.checkpoint:
        return Means(asked, "command", "its user's own")
    recipe, why, seen = _of_program(work_of(line, script), line, folder, elastic, warnings)
    if among and not seen & among:
        return None
    if recipe:
        moving = asked._replace(movable=True, checkpoint=f"{NAMED}{recipe.name}")
        return Means(moving, f"recipe {recipe.name}", why, recipe)
    if config.text("submit", "checkpoint_images"):
        from slurm_pal.submit import transparent

        lacks = transparent.lacks(line, environment, script, elastic, config)
        if not lacks and likely(line, script, environment):
            lacks = transparent.lacks_for_gpus(config)
        if not lacks:
            return Means(asked._replace(movable=True, checkpoint=TRANSPARENT), "transparent", why)
        why = f"{why}; not transparent: {lacks}"
    return Means(asked, "requeue" if asked.movable else "none", why)


def _of_program(
    body: bytes, line: CommandLine, folder: str, elastic: bool, warnings: list[str]
) -> tuple[Recipe | None, str, Set[str]]:
    """The recipe, why this one or none, and the recipes of all programs that are seen."""
    text = body.decode("utf-8", "replace")
    if lacks := _unfit(body, elastic, None):
        return None, lacks, frozenset()
    known = recipes.table(folder, recipes.of_text(text), warnings)
    chdir = next((value for name, value in reversed(line.options) if name == "chdir"), "")
    findings = recipes.findings(text, known, recipes.reader(os.path.abspath(chdir or ".")))
    return *recipes.choose(findings), {one.recipe.name for one in findings}


def _unfit(body: bytes, elastic: bool, recipe: Recipe | None) -> str:
    """Why no recipe, or not this one, fits a job, whatever it runs."""
    if elastic:
        return "an elastic job has no recipe"
    if body.startswith(b"#!") and (recipe is None or recipe.ends) and interpreter(body) not in SHELLS:
        return "the script is not for a shell, and a recipe needs one"
    if (recipe is None or recipe.ends) and _traps_urg(body):
        return "the script has a trap for SIGURG of its own, by which a recipe would end it"
    return ""


def _traps_urg(body: bytes) -> bool:
    """Whether a line of a script sets a trap for SIGURG, as far as its text shows that."""
    for line in body.split(b"\n"):
        before, _, after = line.partition(b"trap ")
        if b"URG" in after and b"#" not in before:
            return True
    return False
