# SPDX-License-Identifier: MIT
"""The commands of a shell script that run one of some programs, as far as its text shows them.

No shell is imitated: a command in a loop, a function or another script counts as it stands, or is not found at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from slurm_pal.base.light import NamedTuple

LAUNCHERS = frozenset({
    "srun", "mpirun", "mpiexec", "mpiexec.hydra", "mpiexec_mpt", "orterun", "prterun", "prun", "aprun", "jsrun",
    "ibrun",
    "charmrun", "env", "time", "nice", "ionice", "taskset", "numactl", "chrt", "command", "nohup", "stdbuf", "timeout",
    "singularity", "apptainer", "shifter", "podman", "podman-hpc", "sarus", "ch-run", "enroot", "exec",
})  # fmt: skip
"""What may stand before a program on its command line, with options of its own."""
_KEYWORDS = ("if", "then", "else", "elif", "while", "until", "do", "!", "{")
_MOST_COMMANDS = 100
_MOST_VARIABLES, _LONGEST = 100, 1 << 14
"""So many variables of a script are put in their places, in lines no longer than that: a submission waits for it."""


class ProgramCommand(NamedTuple):
    """One command that runs a program, split into words, where the shell's own syntax has ended."""

    name: str  # the program's command, e.g. "gmx mdrun"
    words: tuple[str, ...]  # after that
    text: str  # the line
    number: int  # of the line, from 1
    folder: str | None  # where it runs, below the job's directory; None: not known
    takes_over: bool  # by exec: nothing of the script comes after it


def programs(text: str, names: Sequence[str]) -> list[ProgramCommand]:
    """The commands in `text` that run one of `names` ("gmx mdrun", "*Foam"), in their order."""
    signs = [name.split()[0].strip("*") for name in names]
    folder: str | None = ""
    values: dict[str, str] = {}
    found: list[ProgramCommand] = []
    for number, line in _lines(text):
        said = line.strip()
        known = any(sign in said for sign in signs) or any(name in said for name in values)
        if known:
            name, equals, value = said.partition("=")
            if equals and name.isidentifier() and (value[:1] in "\"'" or " " not in value):
                if name in values or len(values) < _MOST_VARIABLES:
                    values[name] = value.strip("\"'")
                continue
            said = _filled(said, values)
        if not known and not said.startswith(("cd ", "pushd ")):
            continue
        for words in split(said):
            if words[0] in ("cd", "pushd"):
                folder = _changed(folder, words[1] if len(words) > 1 else "$")
            elif (one := _program(words, names)) is not None and len(found) < _MOST_COMMANDS:
                name, at = one
                found.append(ProgramCommand(name, tuple(words[at:]), said, number, folder, words[0] == "exec"))
    return found


def _filled(line: str, values: Mapping[str, str]) -> str:
    """The line with the values of its variables, of those for which there is room."""
    for name, value in values.items():
        for place in (f"${{{name}}}", f"${name}"):
            if len(line) + line.count(place) * len(value) <= _LONGEST:
                line = line.replace(place, value)
    return line


def _lines(text: str) -> list[tuple[int, str]]:
    """The lines with their numbers, joined where they go on, without comments and documents (<<)."""
    found: list[tuple[int, str]] = []
    end, joined, begun = "", "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if end:
            end = "" if line.strip() == end else end
            continue
        if not joined and line.lstrip().startswith("#"):
            continue
        begun = begun or number
        joined += line
        if joined.endswith("\\"):
            joined = f"{joined[:-1]} "
            continue
        if "<<" in joined and "<<<" not in joined:
            word = joined.rpartition("<<")[2].lstrip("-").split(maxsplit=1)
            end = word[0].strip("\"'\\;") if word else ""
        found.append((begun, joined))
        joined, begun = "", 0
    return [*found, (begun, joined)] if joined else found


def split(line: str) -> list[list[str]]:
    """The commands of one line, each as its words; "<" stands before a file that is read, what is written to is left
    out, and so are the shell's keywords and assignments before a command."""
    commands: list[list[str]] = [[]]
    word: list[str] = []
    begun, quote, position, into = False, "", 0, False

    def end() -> None:
        nonlocal begun, into
        if begun and not into:
            commands[-1].append("".join(word))
        into = into and not begun
        word.clear()
        begun = False

    while position < len(line):
        char = line[position]
        position += 1
        if quote:
            if char == quote:
                quote = ""
            else:
                word.append(char)
        elif char in "\"'":
            quote, begun = char, True
        elif char == "\\" and position < len(line):
            word.append(line[position])
            position, begun = position + 1, True
        elif char in "<>":
            if "".join(word).isdigit():
                word.clear()
                begun = False
            end()
            while position < len(line) and line[position] in "<>&|":
                char += line[position]
                position += 1
            into = char != "<"
            if not into:
                commands[-1].append("<")
        elif char in ";&|()`":
            end()
            commands.append([])
            into = False
        elif char == "#" and not begun:
            break
        elif char.isspace():
            end()
        else:
            word.append(char)
            begun = True
    end()
    return [words for words in map(_plain, commands) if words]


def _plain(words: list[str]) -> list[str]:
    at = 0
    while at < len(words) and (
        words[at] in _KEYWORDS or (words[at].partition("=")[0].isidentifier() and "=" in words[at])
    ):
        at += 1
    return words[at:]


def _program(words: Sequence[str], names: Sequence[str]) -> tuple[str, int] | None:
    """Which of `names` a command runs, and where its own words begin."""
    last = len(words) if os.path.basename(words[0]) in LAUNCHERS else 1
    for at in range(last):
        own = os.path.basename(words[at])
        for name in names:
            program, _, action = name.partition(" ")
            same = own.endswith(program[1:]) if program.startswith("*") else own == program
            if same and (not action or words[at + 1 : at + 2] == [action]):
                return name, at + 1 + bool(action)
    return None


def _changed(folder: str | None, target: str) -> str | None:
    if target in ("$SLURM_SUBMIT_DIR", "${SLURM_SUBMIT_DIR}"):
        return ""
    if folder is None or not target or "$" in target or target[0] in "~-*":
        return target if target.startswith("/") and "$" not in target else None
    return os.path.join(folder, target)
