# SPDX-License-Identifier: MIT
"""Recipes: how known programs save on demand. They are a table, etc/recipes.d, and a site may add its own.

A recipe holds for a script that runs its program in such a way that the program goes on when the script is started
again. It becomes a checkpoint command for the wrapper: `recipe.sh`, with what the recipe says before it. What is
wrong about a guess costs a move, never the job: where its program is not found then, the command fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from slurm_pal.base.config import plain_toml
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.files import SMALL_BYTES, read_plain, read_trusted
from slurm_pal.base.light import NamedTuple
from slurm_pal.submit.choice import NAMED

END_SCRIPT = "trap 'exit 85' URG"
"""Before a script's first command: recipe.sh lets the script end by it when its program has saved and ended."""
SHIPPED = os.path.join(os.path.dirname(os.path.dirname(__file__)), "etc", "recipes.d")
_SIGNALS = ("TERM", "USR1", "USR2", "INT")
_LISTS = ("commands", "saved", "input", "text")
_TEXTS = ("title", "signal", "file", "content", "option", "resumes", "shown")
_INPUT_BYTES = 1 << 20
TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.submit.command_lines import ProgramCommand

Reader = Callable[[str], str]
"""The text of a file that a script names. Raises OSError or DataError."""


class Recipe(NamedTuple):
    """One row of the table."""

    name: str
    title: str
    resumes: str  # how the program goes on
    commands: tuple[str, ...] = ()  # its command lines begin so; (): only where a user names the recipe
    signal: str = ""  # asks it to save and to end
    file: str = ""  # whose presence does so
    content: str = ""  # what that file holds
    saved: tuple[str, ...] = ()  # files of which one changes when it has saved
    option: str = ""  # that its command must have, so that it goes on
    input: tuple[str, ...] = ()  # options before the file that it reads, "<", or that file
    text: tuple[str, ...] = ()  # that must be in the script or in that file; "a|b": one of them, "^a": a line's begin
    typical_s: float = 0.0
    shown: str = ""  # the real program with which it was shown, "" none
    origin: str = ""  # the file

    @property
    def ends(self) -> bool:
        """Whether the program ends when it has saved; else its next own checkpoint is waited for."""
        return bool(self.signal or self.file)


class Finding(NamedTuple):
    """What a script and one recipe have to do with each other."""

    recipe: Recipe
    command: ProgramCommand | None  # the command that it is about
    lacks: str  # why it does not hold; "" where it does


def load(path: str, name: str, text: str) -> Recipe:
    """Read one recipe, a section of a file. Raises DataError."""
    table: Mapping[str, object] | None = plain_toml(text)
    if table is None:
        import tomllib

        try:
            table = tomllib.loads(text)
        except ValueError as error:
            raise DataError(f"[{name}] cannot be read as TOML: {error}") from None
    body = table.get(name)
    if not isinstance(body, dict):
        raise DataError(f"[{name}] is no name of a recipe")
    values: dict[str, object] = {}
    for key, value in body.items():
        if key == "typical_s" and isinstance(value, int | float):
            values[key] = float(value)
        elif key in (*_TEXTS, *_LISTS) and isinstance(value, str):
            values[key] = value if key in _TEXTS else tuple(filter(None, map(str.strip, value.split(","))))
        else:
            known = ", ".join((*_TEXTS, *_LISTS, "typical_s"))
            raise DataError(f"{name}.{key} = {value!r} is not known, or of the wrong kind; known are {known}")
    made = Recipe(name, values.pop("title", name), values.pop("resumes", ""), origin=path, **values)  # type: ignore[arg-type]
    if made.signal and made.signal not in _SIGNALS:
        raise DataError(f"{name}.signal = {made.signal!r} is not one of {', '.join(_SIGNALS)}")
    if bool(made.signal) + bool(made.file) > 1 or not (made.ends or made.saved):
        raise DataError(f"[{name}] has a signal, or a file, or says what is saved")
    return made


def table(folder: str, wanted: Callable[[str, str], bool], troubles: list[str], shipped: str = SHIPPED) -> list[Recipe]:
    """The recipes that `wanted` says by name and text, by name: those of slurm-pal, and of the site's `folder` (""
    none), which come first. What cannot be read is left out, with one line in `troubles`."""
    found: dict[str, Recipe] = {}
    for place in (shipped, folder) if folder else (shipped,):
        try:
            for file in sorted(os.listdir(place)):
                if file.endswith(".toml"):
                    path = os.path.join(place, file)
                    text = (read_plain if place == shipped else read_trusted)(path, SMALL_BYTES).decode()
                    _read(path, text, wanted, found, troubles)
        except (OSError, DataError, ValueError) as error:
            troubles.append(f"recipes in {place} cannot be read: {error}")
    return [found[name] for name in sorted(found)]


def _read(
    path: str, text: str, wanted: Callable[[str, str], bool], found: dict[str, Recipe], troubles: list[str]
) -> None:
    """The recipes of one file, in the place of earlier ones of their names."""
    for section in f"\n{text}".split("\n[")[1:]:
        name = section.partition("]")[0]
        found.pop(name, None)
        try:
            if wanted(name, section):
                found[name] = load(path, name, f"[{section}")
        except DataError as error:
            troubles.append(f"a recipe of {path} is ignored: {error}")


def of_text(script: str) -> Callable[[str, str], bool]:
    """For `table`: recipes whose program occurs in a script. Most files are not even parsed, which takes time."""

    def wanted(_: str, text: str) -> bool:
        _, found, rest = text.partition('\ncommands = "')
        if not found:
            return "commands" in text
        return any(name.split()[0].strip("*") in script for name in rest.partition('"')[0].split(",") if name.strip())

    return wanted


def findings(script: str, recipes: Sequence[Recipe], read: Reader) -> list[Finding]:
    """What the recipes say of a script, for each program that it runs."""
    found: list[Finding] = []
    if not recipes:
        return found
    from slurm_pal.submit.command_lines import programs

    for recipe in recipes:
        for command in programs(script, recipe.commands) if recipe.commands else ():
            found.append(Finding(recipe, command, _lacks(recipe, command, script, read)))
    return found


def choose(found: Sequence[Finding]) -> tuple[Recipe | None, str]:
    """The recipe that holds for a script, and why, or why none does."""
    if not found:
        return None, "no program of a recipe is seen in the script (pal recipes)"
    for one in found:
        if one.lacks:
            return None, f"recipe {one.recipe.name}: {one.lacks}"
    names = sorted({one.recipe.name for one in found})
    if len(names) > 1:
        return None, f"the script runs programs of several recipes: {', '.join(names)}"
    recipe, command = found[0].recipe, found[0].command
    if not recipe.shown:  # who names it has seen for themselves that it saves
        return None, f"recipe {recipe.name} was never shown with the real program: it holds where it is named"
    return recipe, f"line {command.number} runs {command.name}" if command else ""


def _lacks(recipe: Recipe, command: ProgramCommand, script: str, read: Reader) -> str:
    where = f"line {command.number}"
    if command.takes_over and recipe.ends:
        return f"{where}: with exec the job would end when {command.name} has saved"
    if recipe.option and not any(
        word == recipe.option or word.startswith(f"{recipe.option}=") for word in command.words
    ):
        return f"{where}: {command.name} has no {recipe.option}, so it would not go on after a restart"
    if not recipe.text:
        return ""
    lines, name, trouble = _plain_lines(script), _input_of(recipe, command), ""
    if name:
        try:
            if command.folder is None:
                raise DataError("it is not known in which folder")
            lines += _plain_lines(read(os.path.join(command.folder, name)))
        except (OSError, DataError, ValueError) as error:
            trouble = f" ({name} cannot be read here: {getattr(error, 'strerror', None) or error})"
    for wanted in recipe.text:
        if not any(_is_there(one, lines) for one in wanted.split("|")):
            said = " or ".join(one.lstrip("^") for one in wanted.split("|"))
            return f"{where}: neither script nor input has {said}, so it would not go on after a restart{trouble}"
    return ""


def _input_of(recipe: Recipe, command: ProgramCommand) -> str:
    for sign in recipe.input:
        if not sign.startswith(("-", "<")):
            return sign
        if sign in command.words[:-1]:
            return command.words[command.words.index(sign) + 1]
    return ""


def _plain_lines(text: str) -> list[str]:
    """Lines without comments, blanks, quotes and capitals: input languages differ in these."""
    lines = (line.strip() for line in text.lower().split("\n"))
    kept = (line for line in lines if not line.startswith(("#", "!", "//")))
    return ["".join(char for char in line if char not in " \t'\"") for line in kept]


def _is_there(wanted: str, lines: Sequence[str]) -> bool:
    if wanted.startswith("^"):
        return any(line.startswith(wanted[1:]) for line in lines)
    return any(wanted in line for line in lines)


def reader(folder: str) -> Reader:
    """Reads the files that a script names, from the job's directory."""

    def read(name: str) -> str:
        return read_plain(os.path.join(folder, name), _INPUT_BYTES).decode(errors="replace")

    return read


def named(said: str, folder: str, troubles: list[str]) -> tuple[Recipe, str]:
    """The recipe of "recipe:NAME [FILE]", and the file. Raises UsageError."""
    name, _, argument = said.removeprefix(NAMED).strip().partition(" ")
    found = table(folder, lambda one, _: one == name, troubles)
    if not found:
        raise UsageError(f"checkpoint {said!r}: there is no recipe {name!r}; pal recipes shows those there are")
    if ("{name}" in found[0].file) != bool(argument.strip()):
        form = f'"{NAMED}{name} FILE"' if not argument.strip() else f"{NAMED}{name}"
        raise UsageError(f"checkpoint {said!r}: write {form}")
    return found[0], argument.strip()


def command(recipe: Recipe, file: str = "") -> str:
    """The shell command by which the wrapper has the program save. Raises OSError if recipe.sh cannot be read."""
    with open(os.path.join(os.path.dirname(__file__), "recipe.sh"), encoding="utf-8") as stream:
        text = stream.read()
    said = {
        "name": recipe.name, "commands": "\n".join(recipe.commands), "signal": recipe.signal, "file": recipe.file,
        "content": recipe.content, "saves": "\n".join(recipe.saved), "inputs": " ".join(recipe.input),
        "file_name": file,
    }  # fmt: skip
    lines = []
    for key, value in said.items():
        inside = value.replace("'", "'\\''")
        lines.append(f"recipe_{key}='{inside}'\n")
    return "".join(lines) + text
