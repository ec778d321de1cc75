# SPDX-License-Identifier: MIT
"""A checkpoint on demand: the job's script goes to sbatch inside `wrapper.sh`, which handles SIGUSR1.

The wrapper begins with the script's own directives, so that sbatch reads the same options,
and ends with the script itself, byte for byte, so that `scontrol write batch_script` still
shows it. Its comments and docs/palsub.md explain what it does in the job.
"""

from __future__ import annotations

import contextlib
import os
import re

from slurm_pal.base.errors import PalError
from slurm_pal.submit.argv import CommandLine, SiteOptions, without
from slurm_pal.submit.choice import NO_SAVING, Saving
from slurm_pal.submit.script import READ_LIMIT, Script

SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM")
"""A checkpoint command that is one of these names, with or without SIG, means that signal."""

WRAP = b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n"
"""What sbatch puts before the words of --wrap (seen on 22.05)."""

_PLACE = re.compile(rb"#@HEADER@|#@PART@|@(?:INTERPRETER|NOTE|COMMAND|SIGNAL|FIRST|BEFORE|TIMES|ARRAY)@")


class CannotWrap(PalError):
    """The script must go to sbatch unchanged; the text says why."""


def signal_in(command: str) -> str:
    """The name of the signal that a checkpoint command stands for, "" where it is a shell command."""
    name = command.strip().removeprefix("SIG")
    return name if name in SIGNALS else ""


def wrapped(
    line: CommandLine, script: Script | None, command: str, site: SiteOptions, part: bytes = b"", first: str = "",
    saving: Saving = NO_SAVING, note: tuple[str, ...] = (),
) -> tuple[str, bytes, CommandLine]:  # fmt: skip
    """Path and text of a wrapper for this submission, and the command line that sends it. Writes nothing.

    `command` is "" for a job that makes no checkpoints, `part` what the job has beside its script, `first`
    a command that the script, which is for a shell, is to run before its own, `saving` what is to happen before its
    time limit, `note` the words of the command that prints the line for the end of its output.

    The file has the name that sbatch would give the job: the script's, "wrap", or "sbatch" for a
    script on stdin. Raises CannotWrap or OSError.
    """
    words = dict(line.options).get("wrap")
    if words is not None:
        if line.script is not None:
            raise CannotWrap("sbatch accepts no script with --wrap")
        path = _place("wrap")
        body = WRAP + os.fsencode(f"{first}\n{words}" if first else words) + b"\n"
        text = render(body, command, False, part, saving, note)
        return path, text, line._replace(before=without(line.before, "wrap", site), after=(path,))
    body = script.body if script else b""
    if len(body) >= READ_LIMIT:
        raise CannotWrap(f"the script is longer than {READ_LIMIT >> 20} MiB")
    if first:
        from slurm_pal.submit.observing import with_observer

        body = with_observer(body, first)
    text = render(body, command, part=part, saving=saving, note=note)
    path, after = sent_as(line)
    return path, text, line._replace(after=after)


def sent_as(line: CommandLine) -> tuple[str, tuple[str, ...]]:
    """A path for what sbatch gets instead of the script, not made yet, and the words that name it.

    The file has the name that sbatch would give the job.
    """
    if line.script is None:
        path = _place("sbatch")
        return path, (*line.after, path)
    path = _place(line.script)
    dashes = line.after[:1] if line.after[0] == "--" else ()
    return path, (*dashes, path, *line.after[len(dashes) + 1 :])


def render(
    body: bytes, command: str, directives: bool = True, part: bytes = b"", saving: Saving = NO_SAVING,
    note: tuple[str, ...] = (),
) -> bytes:  # fmt: skip
    """The wrapper around the script `body`, which makes checkpoints by `command` ("": none).

    `directives` is false for a script of --wrap, in which sbatch reads none. Raises CannotWrap
    for a script that sbatch itself refuses, and OSError if wrapper.sh cannot be read.
    """
    if not body.startswith(b"#!"):
        raise CannotWrap("the script does not begin with #!")
    if b"\0" in body or b"\r\n" in body:
        raise CannotWrap("the script is binary or has DOS line breaks, which sbatch refuses")
    with open(os.path.join(os.path.dirname(__file__), "wrapper.sh"), "rb") as stream:
        template = stream.read()
    header = _header(body) if directives else b"#"
    number = signal_in(command)
    filled = {
        b"#@HEADER@": header,
        b"#@PART@": part or b"#",
        b"@INTERPRETER@": b" ".join(quoted(word) for word in _interpreter(body)),
        b"@NOTE@": b" ".join(quoted(os.fsencode(word)) for word in note),
        b"@COMMAND@": quoted(b"" if number else os.fsencode(command)),
        b"@BEFORE@": b"%d" % saving.before_s,
        b"@TIMES@": b"%d" % saving.times,
        b"@ARRAY@": b"%d" % saving.array,
        b"@SIGNAL@": number.encode() or b"''",
    }
    lines = sum(text.count(b"\n") for text in (template, *filled.values()))
    filled[b"@FIRST@"] = str(lines + 1).encode()
    return _PLACE.sub(lambda place: filled[place.group()], template) + body


def _header(body: bytes) -> bytes:
    """The comments before the first command, where directives are; sbatch skips blank lines."""
    kept = []
    for line in body.split(b"\n")[1:]:
        if line.lstrip(b" \t").startswith(b"#"):
            kept.append(line)
        elif line.strip():
            break
    return b"\n".join(kept) or b"#"


def _interpreter(body: bytes) -> list[bytes]:
    """The words of `#!` as the kernel takes them: a program and at most one argument, which may hold blanks.

    Raises CannotWrap if there is none.
    """
    words = body[2:].partition(b"\n")[0].strip(b" \t").split(None, 1)
    if not words:
        raise CannotWrap("the script names no interpreter after #!")
    return words


def quoted(word: bytes) -> bytes:
    """A word as a shell reads it back."""
    return b"'" + word.replace(b"'", b"'\\''") + b"'"


def _place(name: str) -> str:
    """A path for the wrapper of the script `name`, in a directory not made yet. sbatch names the job after it."""
    folder = f"palsub.{os.getpid()}.{os.urandom(6).hex()}"
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", folder, os.path.basename(name))


def write(path: str, text: bytes) -> None:
    """Write the wrapper for sbatch where only its user can read it. After an OSError nothing is left."""
    os.mkdir(os.path.dirname(path), 0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(text)
    except BaseException:
        remove(path)
        raise


def remove(path: str) -> None:
    """Remove the wrapper and its directory; they may already be gone."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))
