# SPDX-License-Identifier: MIT
"""Ask Slurm before anything else is loaded, so that it works meanwhile; built-in modules are enough for that."""

from __future__ import annotations

import posix
import sys
import time

from slurm_pal.slurm import told

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from signal import SIGKILL, SIGPIPE, SIGXFSZ
else:
    from _signal import SIGKILL, SIGPIPE, SIGXFSZ  # plain numbers

SIGNS = ("gpu", "gres", "tres", "-G")
VARIABLES = ("SBATCH_GPUS", "SBATCH_GRES", "SBATCH_TRES")
LEFT = ("hold", "begin", "dependency", "clusters", "het-group", "test-only")
"""With these options Slurm chooses in any case (decide/request.py)."""
_NEVER = ("--pal-off", "--pal-help", "--help", "--usage", "--version", *(f"--{name}" for name in LEFT))
_SCRIPT_BYTES = 1 << 14
_FILE_KIND, _REGULAR_FILE = 0o170000, 0o100000  # in a file's mode (inode(7))

DEFAULT_SIGNALS = [SIGPIPE, SIGXFSZ]
"""Python ignores these two signals; a child must find them as under a shell."""


class Spawned:
    """A running command, and the ends of the pipes from which its stdout and stderr are read."""

    def __init__(self, argv: Sequence[str], stdin: str, environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError."""
        self.name, self.started_s = argv[0], time.monotonic()
        source, feed = posix.pipe()
        self.out, out = posix.pipe()
        self.err, err = posix.pipe()
        ends = ((source, 0), (out, 1), (err, 2))
        try:
            posix.write(feed, stdin.encode())  # a few words: far less than a pipe holds
            actions = [(posix.POSIX_SPAWN_DUP2, end, number) for end, number in ends]
            self.pid = posix.posix_spawnp(
                argv[0], list(argv), environment, file_actions=actions, setsigdef=DEFAULT_SIGNALS
            )
        except OSError:
            posix.close(self.out)
            posix.close(self.err)
            raise
        finally:
            for descriptor in (source, feed, out, err):
                posix.close(descriptor)

    def end(self) -> None:
        """Kill it: nobody needs its answer."""
        posix.close(self.out)
        posix.close(self.err)
        posix.kill(self.pid, SIGKILL)
        posix.waitpid(self.pid, 0)


class Begun:
    """Two running commands; see `slurm.question.Question`."""

    def __init__(self, reservations: bool, environment: Mapping[str, str]) -> None:
        """Start both. Raises OSError."""
        self.kinds, self.word, self.part = told.kinds(reservations), told.mark(), told.mark()
        clean = told.clean_environment(environment)
        self.scontrol = Spawned(told.SCONTROL, told.asking(self.kinds, self.part), clean)  # first: it takes longer
        try:
            self.squeue = Spawned(told.argv(told.FEW, self.word), "", clean)
        except OSError:
            self.scontrol.end()
            raise

    def end(self) -> None:
        """Nobody needs their answers."""
        self.scontrol.end()
        self.squeue.end()


def begin(words: Sequence[str]) -> Begun | None:
    """Ask where the words after the program's name look like GPUs, before it is known what they mean: a wrong guess
    costs slurmctld some small requests, or us some ms. None: not asked; what fails here is tried again."""
    environment = _environment()
    if environment.get("SLURM_PAL_OFF", "0") not in ("", "0") or any(word.startswith(_NEVER) for word in words):
        return None
    if environment.get("SLURM_PAL_SLURM_BACKEND") == "rest":
        return None
    texts = [*words, *map(_directives, words)]
    if not any(sign in text for text in texts for sign in SIGNS) and not any(map(environment.get, VARIABLES)):
        return None
    try:
        return Begun(any(word.startswith("--reserv") for word in words), environment)
    except OSError:
        return None


def _environment() -> Mapping[str, str]:
    """As os.environ, which would have to be loaded first."""
    if "os" in sys.modules:
        return sys.modules["os"].environ  # type: ignore[no-any-return]
    how = sys.getfilesystemencoding(), "surrogateescape"
    return {name.decode(*how): value.decode(*how) for name, value in posix.environ.items()}


def _directives(word: str) -> str:
    """The lines of a file with #SBATCH in them, if a word is its name: it may be the script."""
    try:
        if word.startswith("-") or posix.stat(word).st_mode & _FILE_KIND != _REGULAR_FILE:
            return ""
        with open(word, encoding="utf-8", errors="replace") as stream:
            return "".join(line for line in stream.read(_SCRIPT_BYTES).split("\n") if line.startswith("#SBATCH"))
    except (OSError, ValueError):
        return ""
