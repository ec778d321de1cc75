# SPDX-License-Identifier: MIT
"""An observer beside the job: one command before the first command of the job's own script.

sbatch gets a copy of the script with that command on the line of the script's own first command.
So line numbers, `$0`, process ids, signals and the exit status do not change. The observer is put
into the background at once and has none of the job's streams; whether it starts, runs or dies does
not matter to the script. Only a shell can do that: other scripts are left alone.

Of an array the first task is observed, found by the variables that Slurm gives to each task.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping

from slurm_pal.decide.request import Conflict
from slurm_pal.sensitivity.keys import script_digest
from slurm_pal.submit import checkpoint
from slurm_pal.submit.argv import CommandLine, SiteOptions, without
from slurm_pal.submit.checkpoint import CannotWrap
from slurm_pal.submit.known import work_of
from slurm_pal.submit.options import merge
from slurm_pal.submit.script import READ_LIMIT, SHELLS, Script, interpreter

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.base.config import Config

MODULE = "slurm_pal.profiling.node.observer"
_COMMAND = re.compile(rb"^[^\S\n]*[^\s#]", re.MULTILINE)
"""Up to the first character of the first line that is neither blank nor a comment."""
_GRES = ("gres", "tres-per-task")
_GPU_OPTIONS = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"})
LONGEST_NAME = 40
"""The name of a shell, in a message."""

_OF_ARRAY = 'if [ "${{SLURM_ARRAY_TASK_ID-}}" = "${{SLURM_ARRAY_TASK_MIN-}}" ]; then {}; fi 2>/dev/null'
"""Each task's shell decides by itself: a task without an observer starts no process."""


def command(config: Config, seconds: float, digest: str, stage: str = "", array: bool = False) -> str:
    """The words that start the observer, in an array's first task only; `$$` becomes the batch shell's process id."""
    from slurm_pal.store.kernels import path_of

    python = config.text("profile", "python") or sys.executable
    words = [
        python, "-P", "-m", MODULE, "--seconds", f"{seconds:g}",
        "--active", f"{config.number('sensitivity', 'active_s'):g}",
        "--classifier", config.text("sensitivity", "classifier"), "--kernels", path_of(config.gpus_path),
    ]  # fmt: skip
    words += ["--digest", digest] if digest else []
    words += ["--stage", stage] if stage else []
    start = f'({shlex.join(words)} --pid "$$" </dev/null >/dev/null 2>&1 &)'
    # The outer shell's stream is redirected, too: `bash -x` would show the words there.
    return _OF_ARRAY.format(start) if array else f"{start} 2>/dev/null"


def with_observer(body: bytes, start: str) -> bytes:
    """The script with the observer's start before its first command.

    Raises CannotWrap for a script that is not for a shell, that has no command, or that sbatch refuses.
    """
    if not body.startswith(b"#!") or b"\0" in body or b"\r\n" in body:
        raise CannotWrap("sbatch would not accept the script")
    shell = interpreter(body)
    if shell not in SHELLS:
        named = shell[:LONGEST_NAME] or "nobody"
        raise CannotWrap(f"the script is for {named}, and only a shell can start an observer")
    first = _COMMAND.search(body)
    if first is None:
        raise CannotWrap("the script has no command")
    return body[: first.start()] + os.fsencode(start) + b"; " + body[first.start() :]


def check(line: CommandLine, environment: Mapping[str, str], script: Script | None, asked: bool) -> None:
    """Raise CannotWrap for a submission that gets no observer; `asked`: the user wants one, with or without GPUs."""
    if line.hetjob or (script and script.hetjob):
        raise CannotWrap("it is heterogeneous")
    if line.unsure:
        raise CannotWrap(line.unsure)
    try:
        merged = merge(line, environment, script)
    except Conflict as reason:
        raise CannotWrap(str(reason)) from None
    # `build` is not used: a job whose nodes Slurm must choose is observed like any other.
    if not asked and not any("gpu" in merged.get(name, "") for name in _GRES) and not _GPU_OPTIONS & merged.keys():
        raise CannotWrap("it asks for no GPU")


def observed(
    line: CommandLine, script: Script | None, config: Config, seconds: float, site: SiteOptions, stage: str = ""
) -> tuple[CommandLine, Script | None]:
    """Command line and script with the observer, ready for `sending`. Raises CannotWrap."""
    array = not stage and "array" in merge(line, os.environ, script)  # a probe is no array, whatever the script says
    start = command(config, seconds, script_digest(work_of(line, script)), stage, array)
    words = dict(line.options).get("wrap")
    if words is not None:
        if line.script is not None:
            raise CannotWrap("sbatch accepts no script with --wrap")
        text = f"{start}; {words}"
        options = (*((name, value) for name, value in line.options if name != "wrap"), ("wrap", text))
        return line._replace(options=options, before=(*without(line.before, "wrap", site), f"--wrap={text}")), script
    if script is None or not script.body or len(script.body) >= READ_LIMIT:
        raise CannotWrap("the script is not known here, or too long")
    return line, script._replace(body=with_observer(script.body, start))


def sending(line: CommandLine, script: Script | None) -> tuple[str, bytes, CommandLine]:
    """Path and text of the file that sbatch is to get, and its command line; the path is "" for --wrap."""
    if line.has("wrap") or script is None:
        return "", b"", line
    path, after = checkpoint.sent_as(line)
    return path, script.body, line._replace(after=after)
