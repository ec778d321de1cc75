# SPDX-License-Identifier: MIT
"""What all click programs share: errors as one line and an exit code, JSON, colour."""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from slurm_pal import __version__
from slurm_pal.base.errors import Exit, PalError, UsageError, one_line
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.base.terminal import visible

if TYPE_CHECKING:
    from slurm_pal.base.config import Config

Command = Callable[..., Any]


json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output, versioned by its schema.")
class_option = click.option(
    "--class",
    "sensitivity",
    type=click.Choice(SENSITIVITY_CLASSES),
    default=SENSITIVITY_CLASSES[0],
    show_default=True,
    help="Sensitivity class: A compute-bound, B mixed, C memory-bound.",
)
PROGRAM: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
"""Settings of each program: -h is --help, with all its commands."""

color_option = click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="Colours; NO_COLOR is honoured."
)
verbose_option = click.option(
    "-v", "--verbose", count=True, help="More detail; -vv shows tracebacks.", expose_value=False
)
version_option = click.version_option(__version__, "-V", "--version", message="%(prog)s (slurm-pal) %(version)s")


def run(command: click.Command, program: str) -> None:
    """Run a click program and exit with a code of the one table, `Exit`.

    A PalError becomes one line on stderr. Anything else that escapes is our
    defect: also one line, with the way to the traceback (-vv).
    """
    gc.freeze()  # what is loaded by now stays
    gc.enable()
    atexit.register(_drop_unsaid)
    verbose = any(word.startswith("-vv") or word == "--verbose" for word in sys.argv[1:])
    try:
        sys.exit(command.main(prog_name=program, standalone_mode=False, **PROGRAM) or 0)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        print(f"{program}: interrupted", file=sys.stderr)
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader has left (`pal gpus | head`): not an error, and nothing more to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except Exception as error:
        if verbose:
            traceback.print_exc()
        known = isinstance(error, PalError | OSError)
        kind = "" if known else f"internal error ({type(error).__name__}): "
        print(f"{program}: error: {kind}{one_line(error)}", file=sys.stderr)
        if not known and not verbose:
            print(f"{program}: run it again with -vv to see where, and please report it", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, PalError) else Exit.FAILED)


def check_every(config: Config, every: float) -> None:
    """Raise UsageError for an interval so long that a table would be too old before the next one comes."""
    limit_s = config.number("filter", "max_age_s")
    if not 0 < every < limit_s:
        raise UsageError(
            f"--every {every:g} must be above 0 and below {limit_s:g} s, since an older table is not believed "
            "(filter.max_age_s)"
        )


def _drop_unsaid() -> None:
    """Output that stderr could not take (a full disk) does not fail the command; Python would exit with 120."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def print_json(thing: str, body: dict[str, Any]) -> None:
    """Print `body` with its schema first, e.g. `"schema": "pal.nodes/1"`."""
    click.echo(json.dumps({"schema": f"pal.{thing}/1", **body}, indent=2, allow_nan=False))


def say(*lines: str, err: bool = False, color: bool | None = None, bold: bool = False, fg: str | None = None) -> None:
    """Print lines, users' own text among them: no character that a terminal would act on reaches it.

    The one place where commands print text. `bold` and `fg` go to `click.style`; colour within a line, and files
    written to standard output, go through `click.echo`.
    """
    for line in lines:
        text = visible(line)
        click.echo(click.style(text, bold=bold or None, fg=fg) if bold or fg else text, err=err, color=color)


def say_finding(mark: str, tint: str | None, text: str, mend: str, colored: bool) -> None:
    """Print one finding of a check, and what mends it on a line of its own."""
    blank = " " * (len(mark) + 2)
    first, *rest = wrapped(f"{blank}{text}", f"{blank}  ")
    shown = click.style(mark, fg=tint) if colored else mark
    click.echo(f"{shown}{first.removeprefix(blank[:-2])}", color=colored)
    say(*rest)
    if mend:
        say(f"{'':19}-> {mend}")  # whole, since it is copied


def screen_width() -> int:
    """Characters of a line: $COLUMNS, else the terminal's; where there is neither (a pipe, a file), without limit."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isascii() and stated.isdigit() and int(stated[:6]) > 0:
        return int(stated[:6])
    try:
        on_terminal = sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):
        on_terminal = 0
    return on_terminal or sys.maxsize


def wrapped(text: str, indent: str = "") -> list[str]:
    """The lines of a text on this screen, broken between words; all but the first begin with `indent`."""
    text, width = visible(text), screen_width()
    if len(text) <= width:
        return [text]
    import textwrap

    broad = max(width, len(indent) + 20)
    return textwrap.wrap(text, broad, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def use_color(choice: str) -> bool:
    """Whether to colour standard output. NO_COLOR (no-color.org) counts in `auto`."""
    if choice == "auto":
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return choice == "always"
