# SPDX-License-Identifier: MIT
"""palsub: sbatch, on the GPUs that suit the job. The work is in slurm_pal.submit."""

from __future__ import annotations

import gc
import posix
import sys

_NAMES = (
    "class", "app", "policy", "checkpoint", "elastic", "elastic-partition", "elastic-hook", "fork", "goal", "alt",
    "input", "save-before", "save-times",
)  # fmt: skip
VALUES = frozenset(f"--pal-{name}" for name in _NAMES)
"""Our words that have a value; where another module of ours has failed, this one cannot ask it."""


def main() -> int:
    """Run palsub; the exit code is sbatch's, 2 for a wrong --pal- option."""
    gc.disable()  # a process of 50 ms has no use for it, and parsing 10,000 lines pays for it
    begun = asked = None
    try:
        from slurm_pal.submit import early

        begun = early.begin(sys.argv[1:])
        from slurm_pal.base import loading

        loading.install()
        from slurm_pal.submit.asked import Asked

        asked = Asked(begun)
        from slurm_pal.submit.submission import main as submit

        return int(submit(sys.argv[1:], asked))
    except KeyboardInterrupt:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        posix.kill(posix.getpid(), signal.SIGINT)
        return 130
    except (Exception, SystemExit) as error:  # whatever is wrong with us, the job goes to Slurm
        question = asked or begun
        if question is not None:
            question.end()
        sbatch = sys.modules.get("slurm_pal.submit.run_sbatch")
        if not getattr(sbatch, "started", False):
            return _plain(error)
        _say(f"{type(error).__name__} after sbatch was started: {str(error)[:200]!r}")
        status = getattr(sbatch, "ended", None)
        return 1 if status is None else status if status >= 0 else 128 - status


def program() -> int:
    """The installed command: `main`, without the interpreter's shutdown, which is a tenth of palsub's time."""
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # closed, or nobody reads it: end as any Python program does
        return code
    posix._exit(code)


def _say(text: str) -> None:
    try:
        posix.write(2, f"palsub: {text}\n".encode(errors="replace"))
    except OSError:  # the disk is full: the job matters more
        return


def _plain(error: BaseException) -> int:
    """Become sbatch without our own options, and use no module of ours: one of them has failed.

    bin/palsub does the same where not even Python works.
    """
    import os

    said = f"{type(error).__name__}: {str(error)[:200]!r}"
    words = list(sys.argv[1:])
    kept: list[str] = []
    while words and words[0].startswith("-") and words[0] != "--":
        word = words.pop(0)
        if word in ("--pal-dry-run", "--pal-help"):
            _say(f"{said}: nothing is submitted")
            return 1
        if not word.startswith("--pal-"):
            kept.append(word)
            if words and not words[0].startswith("-") and not os.path.isfile(words[0]):
                kept.append(words.pop(0))  # an option's value; only a file can be the script
        elif word in VALUES and words:
            words.pop(0)
    _say(f"submitted as plain sbatch: {said}")
    import signal

    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    for place in os.environ.get("PATH", os.defpath).split(":"):
        path = os.path.join(place or ".", "sbatch")
        if os.access(path, os.X_OK) and not _is_palsub(path):
            try:
                os.execve(path, ["sbatch", *kept, *words], os.environ)
            except OSError:
                continue
    _say("sbatch: command not found")
    return 127


def _is_palsub(path: str) -> bool:
    """A site may give palsub that name."""
    import os

    try:
        return os.path.samefile(path, sys.argv[0])
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(program())
