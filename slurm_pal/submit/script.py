# SPDX-License-Identifier: MIT
"""The job script as sbatch will see it, read without disturbing what sbatch reads.

sbatch's own rules (sbatch(1), and measured on 22.05): directives come before the first
line that is neither blank nor a comment; `#SBATCH` begins in the first column; a
backslash quotes the next character, also inside quotes; an unquoted `#` ends the line,
even in the middle of a word.
"""

from __future__ import annotations

import os
import stat

from slurm_pal.base.light import NamedTuple, pattern
from slurm_pal.submit.argv import Options, SiteOptions, read_options

_COMMAND = pattern(r"\s(checkpoint|elastic-hook)=")
PLUGIN_OPTIONS = frozenset({"pal-class", "pal-app", "pal-avoid-slow"})
"""Options of our SPANK plug-in that say the same as a #PAL line."""
PLUGIN_NOTE = "pal-note"
"""The plug-in itself writes the line for which this one asks."""
SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"})
READ_LIMIT = 64 << 20
"""Bytes taken from a pipe. slurmctld refuses far smaller scripts (max_script_size, 4 MiB)."""


class Script(NamedTuple):
    """What is known of the script."""

    words: tuple[str, ...] = ()  # of all #SBATCH lines
    pal: tuple[tuple[str, str], ...] = ()  # key, value of all #PAL lines
    hetjob: bool = False
    foreign: bool = False  # has #PBS or #BSUB lines, which sbatch translates
    doubt: str = ""  # why the directives are not known; "" when they are
    body: bytes = b""  # all of it, if it was read from a file or from stdin
    site: tuple[tuple[str, int], ...] = ()  # options of the installed sbatch, where words has one that is not known

    @property
    def options(self) -> Options:
        """sbatch's options in the words."""
        return read_options(self.words, lambda: dict(self.site))

    def understood(self, site: SiteOptions) -> Script:
        """The script with what the installed sbatch says of options that are not known here, our plug-in's included."""
        if not self.options.unsure:
            return self
        known = self._replace(site=tuple(site().items()))
        ours = ((name[4:], value) for name, value in known.options.found if name in PLUGIN_OPTIONS)
        return known._replace(pal=(*self.pal, *ours))


def interpreter(body: bytes) -> str:
    """The base name of the program that runs a script, "" for none; options and assignments of env are skipped."""
    words = body[2:].partition(b"\n")[0].split()
    if words and os.path.basename(words[0]) == b"env":
        words = [word for word in words[1:] if not word.startswith(b"-") and b"=" not in word]
    return os.fsdecode(os.path.basename(words[0])) if words else ""


class Input(NamedTuple):
    """A script's bytes, and the descriptor that sbatch must get as stdin (None: the one we have)."""

    body: bytes
    stdin: int | None = None


def from_file(name: str, chdir: str | None) -> Script:
    """The script named on the command line, searched for where sbatch searches."""
    path = find(name, chdir)
    if path is None:
        return Script(doubt=f"script {name} was not found")
    try:
        # Checked before it is opened: even opening a pipe would disturb its writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return Script(doubt=f"script {name} is not a regular file and can be read only once")
        with open(path, "rb") as stream:
            body = stream.read(READ_LIMIT)
        return scan(body)._replace(body=body)
    except OSError as error:
        return Script(doubt=f"script {name} cannot be read: {error.strerror}")


def find(name: str, chdir: str | None) -> str | None:
    """sbatch's search: absolute and ./ names as they are, others in the job's directory, PATH, here."""
    if name.startswith(("/", ".")):
        return name if os.path.exists(name) else None
    places = [chdir or ".", *os.environ.get("PATH", "").split(":"), "."]
    for place in places:
        path = os.path.join(place or ".", name)
        if os.path.exists(path) and not os.path.isdir(path) and os.access(path, os.R_OK):
            return path
    return None


def from_stdin() -> Input | None:
    """The script on stdin, left or copied so that sbatch can still read it; None when it must be left alone."""
    mode = os.fstat(0).st_mode
    if stat.S_ISREG(mode):
        return Input(_pread_all(0, os.lseek(0, 0, os.SEEK_CUR)))
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None
    copy = os.memfd_create("palsub-script")  # close-on-exec; dup2 onto 0 clears it
    taken = 0
    body = bytearray()
    while taken < READ_LIMIT and (block := os.read(0, 1 << 16)):
        taken += len(block)
        body += block
    view = memoryview(body)
    while view:
        view = view[os.write(copy, view) :]
    os.lseek(copy, 0, os.SEEK_SET)
    return Input(bytes(body), copy)


def _pread_all(descriptor: int, offset: int) -> bytes:
    blocks = []
    while offset < READ_LIMIT and (block := os.pread(descriptor, 1 << 18, offset)):
        blocks.append(block)
        offset += len(block)
    return b"".join(blocks)


def scan(body: bytes) -> Script:
    """Read the directives of a script."""
    if not body.startswith(b"#!"):
        return Script(doubt="the script does not begin with #!")
    words: list[str] = []
    pal: list[tuple[str, str]] = []
    hetjob = foreign = False
    doubt = ""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        line = body[start:end]
        start = end + 1
        if line.startswith(b"#SBATCH"):
            text = os.fsdecode(line[7:])
            hetjob = hetjob or "hetjob" in text.lower() or "packjob" in text.lower()
            split = split_words(text)
            doubt = doubt or ("" if split is not None else "a #SBATCH line has an unmatched quote")
            words += split or []
        elif line.startswith(b"#PAL") and line[4:5] in (b" ", b"\t"):
            pal += _pal_words(os.fsdecode(line[4:]))
        elif line.startswith((b"#PBS", b"#BSUB")):
            foreign = True
        elif line.strip() and not line.lstrip().startswith(b"#"):
            break
    if b"\0" in body[:start] or b"\r\n" in body[:start]:
        doubt = doubt or "the script is binary or has DOS line breaks, which sbatch refuses"
    return Script(tuple(words), tuple(pal), hetjob, foreign, doubt)


def split_words(text: str) -> list[str] | None:
    """The words of one directive line by sbatch's rules; None for an unmatched quote.

    An empty word (`""`) ends the line, as it does for sbatch.
    """
    words: list[str] = []
    word: list[str] = []
    quote, escaped, begun = "", False, False
    for char in text + " ":
        if escaped:
            word.append(char)
            escaped = False
        elif char == "\\":
            begun = escaped = True
        elif quote and char == quote:
            quote = ""
        elif quote:
            word.append(char)
        elif char in "\"'":
            quote, begun = char, True
        elif char == "#":
            break
        elif not char.isspace():
            word.append(char)
        elif word:
            words.append("".join(word))
            word, begun = [], False
        elif begun:
            return words
    if word:
        words.append("".join(word))
    return None if quote else words


def _pal_words(text: str) -> list[tuple[str, str]]:
    """`#PAL class=A movable`: split like #SBATCH lines; a key alone has the value "".

    A command (checkpoint, elastic-hook) goes on to the end of the line: a shell is to split it.
    """
    text, named, command = (*_COMMAND.split(text, maxsplit=1), "", "")[:3]
    pairs = []
    for word in split_words(text) or []:
        key, _, value = word.partition("=")
        pairs.append((key, value))
    return [*pairs, (named, command.strip())] if named else pairs
