# SPDX-License-Identifier: MIT
"""Changes of a site's files as `pal admin` and `pal setup` show them, and what speaks against them."""

from __future__ import annotations

import difflib
import os

from slurm_pal.admin import changes, check, services, site_files
from slurm_pal.cli import common
from slurm_pal.emulation import gpus as emulated
from slurm_pal.slurm.cli import subprocess_runner

CHECK_TIMEOUT_S = 20.0  # Slurm itself looks for a missing include for a minute

_VERBS = {
    "mkdir": "make the folder",
    "rmdir": "remove the folder",
    "copy": "write",
    "edit": "edit",
    "link": "link",
    "touch": "touch",
    "remove": "remove",
    "purge": "remove, with all in it,",
}


def has_systemd() -> bool:
    """Whether this machine's systemd is for this Slurm: a lab's daemons are nobody's services."""
    return services.present() and emulated.find_registry(os.environ) is None


def show(todo: changes.ChangePlan, act: bool) -> None:
    """The steps, with the site's files as a diff; then the notes."""
    for step in todo.steps:
        target = f" -> {step.new}" if step.action == "link" else ""
        size = f" ({len(step.new)} characters)" if step.action == "copy" else ""
        common.say(f"{'' if act else 'would '}{_VERBS[step.action]} {step.path}{target}{size}: {step.why}")
        if step.action == "edit":
            common.say(*_diff(step))
    for note in todo.notes:
        common.say(f"note: {note}")


def _diff(step: changes.FileChange) -> list[str]:
    old, new = _shown_lines(step.old or ""), _shown_lines(step.new)
    before = step.path if step.old is not None else os.devnull
    found = difflib.unified_diff(old, new, before, step.path, lineterm="", n=2)
    return [part for line in found for part in line.split("\n")]


def _shown_lines(text: str) -> list[str]:
    """Lines for a diff: bytes that are not text as `?`, a missing last newline as diff shows it."""
    lines = text.encode("utf-8", "replace").decode().split("\n")
    last = lines.pop()
    return [*lines, *([f"{last}\n\\ No newline at end of file"] if last else [])]


def against(found: changes.SiteFiles, todo: changes.ChangePlan, act: bool) -> list[str]:
    """Reasons against the plan; Slurm's parser is asked only where we find none."""
    reasons = list(todo.blockers)
    if not todo.steps:
        return reasons
    reasons += site_files.distrust(found, todo)
    if act and not site_files.may_act(found):
        reasons.append("only root and SlurmUser may install: sudo pal admin")
    return reasons or list(check.complaints(found, todo, subprocess_runner(CHECK_TIMEOUT_S)))
