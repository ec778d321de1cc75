# SPDX-License-Identifier: MIT
"""palsub's command line: our words taken out, sbatch's understood but not changed.

sbatch reads its options with getopt_long and stops at the first word that is not an
option ("+"): everything from `--` or the script name on belongs to the script.
"""

from __future__ import annotations

from slurm_pal.base.errors import UsageError
from slurm_pal.base.light import Callable, NamedTuple, Sequence
from slurm_pal.submit.options_table import LONG, NONE, REQUIRED, SAME, SHORT

PAL_VALUES = (
    "class", "app", "policy", "checkpoint", "elastic", "elastic-partition", "elastic-hook", "fork",
    "goal", "alt", "input", "save-before", "save-times",
)  # fmt: skip
PAL_OPTIONAL = ("movable", "observe", "avoid-slow")
PAL_FLAGS = ("off", "dry-run", "explain", "json", "watch", "note", "help")

Option = tuple[str, str]
"""(long name, value); the value of a flag is ""."""


class Options(NamedTuple):
    """sbatch options as read from words, and where the reading stopped."""

    found: tuple[Option, ...]
    end: int  # position of the first word that is not an option
    unsure: str  # why sbatch may read these words differently; "" if it cannot


class CommandLine(NamedTuple):
    """A palsub command line taken apart. sbatch's argv is `before` + additions + `after`."""

    options: tuple[Option, ...]
    pal: tuple[Option, ...]  # without the --pal- prefix
    before: tuple[str, ...]
    after: tuple[str, ...]
    script: str | None
    hetjob: bool
    unsure: str

    def has(self, *names: str) -> bool:
        """Whether one of these sbatch options is on the command line."""
        return any(name in names for name, _ in self.options)


SiteOptions = Callable[[], dict[str, int]]
"""Asks the installed sbatch for its long options; called at most once, and only for a name not in the table."""


def no_site_options() -> dict[str, int]:
    """For words that must be read without running anything."""
    return {}


def parse(words: Sequence[str], site: SiteOptions = no_site_options) -> CommandLine:
    """Take palsub's words (without the program name) apart.

    Raises UsageError for an unknown or malformed `--pal-` word.
    """
    options: list[Option] = []
    pal: list[Option] = []
    before: list[str] = []
    unsure, hetjob, position = "", False, 0
    while position < len(words):
        word = words[position]
        if word.startswith("--pal-"):
            option, position = _pal_option(words, position)
            pal.append(option)
        elif word == ":":  # this separates components of a heterogeneous job
            hetjob = True
            before.append(word)
            position += 1
        elif word == "--" or not _is_option(word):
            break
        else:
            read = read_options(words, site, position, one=True)
            options += read.found
            unsure = unsure or read.unsure
            before += words[position : read.end]
            position = read.end
    after = tuple(words[position:])
    positional = after[1:] if after[:1] == ("--",) else after
    return CommandLine(
        tuple(options), tuple(pal), tuple(before), after, positional[0] if positional else None,
        hetjob or ":" in positional, unsure,
    )  # fmt: skip


def _is_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-"


def read_options(
    words: Sequence[str], site: SiteOptions = no_site_options, start: int = 0, one: bool = False
) -> Options:
    """Read sbatch options from `start` to the first other word (or just one option word)."""
    found: list[Option] = []
    unsure, position = "", start
    while position < len(words) and _is_option(words[position]) and words[position] != "--":
        reader = _long if words[position].startswith("--") else _bundle
        options, position, doubt = reader(words, position, site)
        found += options
        unsure = unsure or doubt
        if one:
            break
    return Options(tuple(found), position, unsure)


def _long(words: Sequence[str], position: int, site: SiteOptions) -> tuple[list[Option], int, str]:
    name, sign, value = words[position][2:].partition("=")
    full, kind, doubt = _resolve(name, site)
    full = SAME.get(full, full)
    if kind == NONE and sign:
        doubt = doubt or f"--{name} takes no value"
    if kind == REQUIRED and not sign:
        if position + 1 >= len(words):
            return [], position + 1, f"--{name} lacks its value"
        return [(full, words[position + 1])], position + 2, doubt
    return [(full, value)], position + 1, doubt


def _resolve(name: str, site: SiteOptions) -> tuple[str, int, str]:
    """The full name and argument kind of a long option, by getopt_long's rule of unique prefixes."""
    if name in LONG:
        return name, LONG[name], ""
    starts = [known for known in LONG if known.startswith(name)]
    if len(starts) != 1:
        asked = site()
        if name in asked:
            return name, asked[name], ""
        starts = sorted({known for known in (*starts, *asked) if known.startswith(name)})
        kinds = {**asked, **LONG}
        if not starts:
            return name, NONE, f"--{name} is not an option of sbatch that is known here"
        if len(starts) > 1:
            same = {kinds[known] for known in starts}
            return name, same.pop() if len(same) == 1 else NONE, f"--{name} may mean --{' or --'.join(starts)}"
        return starts[0], kinds[starts[0]], ""
    return starts[0], LONG[starts[0]], ""


def _bundle(words: Sequence[str], position: int, site: SiteOptions) -> tuple[list[Option], int, str]:
    """`-Hn4`, `-N2`, `-J name`: flags may be combined; the last one may take the rest as its value."""
    letters = words[position][1:]
    found: list[Option] = []
    for place, letter in enumerate(letters):
        name = SHORT.get(letter)
        if name is None:
            return found, position + 1, f"-{letter} is not an option of sbatch that is known here"
        rest = letters[place + 1 :]
        if LONG[name] == NONE:
            found.append((name, ""))
        elif rest or LONG[name] != REQUIRED:
            return [*found, (name, rest)], position + 1, ""
        elif position + 1 < len(words):
            return [*found, (name, words[position + 1])], position + 2, ""
        else:
            return found, position + 1, f"-{letter} lacks its value"
    return found, position + 1, ""


def without(words: Sequence[str], name: str, site: SiteOptions = no_site_options) -> tuple[str, ...]:
    """sbatch's words with one option, and its value, left out."""
    kept: list[str] = []
    position = 0
    while position < len(words):
        read = read_options(words, site, position, one=True)
        end = max(read.end, position + 1)
        if not any(found == name for found, _ in read.found):
            kept += words[position:end]
        position = end
    return tuple(kept)


def _unknown(name: str) -> str:
    from difflib import get_close_matches  # only here: palsub starts without it

    every = sorted(PAL_VALUES + PAL_OPTIONAL + PAL_FLAGS)
    near = get_close_matches(name, every, 1)
    meant = f"; did you mean --pal-{near[0]}?" if near else ""
    return f"unknown option --pal-{name}; known are {', '.join(f'--pal-{n}' for n in every)}{meant}"


def _pal_option(words: Sequence[str], position: int) -> tuple[Option, int]:
    name, sign, value = words[position][len("--pal-") :].partition("=")
    if name in PAL_FLAGS:
        if sign:
            raise UsageError(f"--pal-{name} takes no value, but {value!r} was given")
        return (name, ""), position + 1
    if name in PAL_OPTIONAL:
        if sign and not value:
            raise UsageError(f"--pal-{name}= lacks its value: give one, or leave the = out")
        return (name, value), position + 1
    if name not in PAL_VALUES:
        raise UsageError(_unknown(name))
    if sign:
        return (name, value), position + 1
    if position + 1 >= len(words):
        raise UsageError(f"--pal-{name} needs a value: see palsub --pal-help")
    return (name, words[position + 1]), position + 2
