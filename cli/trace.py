# SPDX-License-Identifier: MIT
"""pal trace: look at traces, turn them into our format, draw some, take the names out."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import click

from slurm_pal.base.errors import UsageError
from slurm_pal.cli import common, tables
from slurm_pal.cli.simulate.options import COUNT
from slurm_pal.report.listing import Listing

if TYPE_CHECKING:
    from slurm_pal.simulate.trace import Trace

DEFAULT_GPUS = 64
KEY_BYTES = 32


@click.group()
def trace() -> None:
    """Traces for pal simulate (docs/traces.md).

    \b
    Examples:
      pal trace describe sacct.txt                 what is in it, and which rows are not usable
      pal trace convert sacct.txt -o history.csv   any format into our own
      pal trace describe T.trace --throughputs TABLE.json    Gavel's, whose jobs count steps
      pal trace generate jobs=500,load=0.9 -o t.csv
      pal trace hash sacct.txt -o shared.txt       a sacct export without names
    """


def _reading(command: common.Command) -> common.Command:
    for option in (
        common.verbose_option,
        click.option(
            "--processors-per-gpu", type=COUNT, default=1, show_default=True, help="swf: processors of one GPU."
        ),
        click.option("--throughputs", metavar="FILE", help="gavel: steps/s by application and GPU type, JSON or CSV."),
        click.option("--app-table", metavar="FILE", help="sia, shockwave: seconds per iteration and class of models."),
        click.option(
            "--app-pattern", "app_patterns", multiple=True, metavar="GLOB=APP", help="sacct: class by job name."
        ),
        click.option("--format", "format_", metavar="NAME", default="auto", show_default=True, help="Its format."),
        click.argument("file", metavar="FILE"),
    ):
        command = option(command)
    return command


output_option = click.option("-o", "--output", metavar="FILE", help="Write there instead of standard output.")


def _read(options: dict[str, Any]) -> Trace:
    from slurm_pal.cli.simulate.trace_inputs import options_of, with_throughputs
    from slurm_pal.simulate.inputs import read

    reading = with_throughputs(options_of(options), options["throughputs"])
    return read(options["file"], options["format_"], reading)


@trace.command()
@_reading
@tables.table_options_beside_a_trace
def describe(form: tables.Form, **options: Any) -> None:  # noqa: ANN401
    """Jobs, GPU-hours, sizes, run times, classes; and the rows that cannot be replayed."""
    from slurm_pal.cli.simulate.run import show_bad_rows
    from slurm_pal.simulate.inputs import describe as figures_of

    found = _read(options)
    figures = figures_of(found)
    listing = Listing(("figure", "member", "value"), _figure_rows(figures))
    bad = [row._asdict() for row in found.bad]
    text = lambda: tables.say_notes(_lines("", figures))  # noqa: E731
    tables.show(form, listing, "trace-figures", lambda told: {**figures, "bad_rows": bad}, text=text)
    if not form.as_json:
        show_bad_rows(found)


def _figure_rows(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each figure, and for each member of a group of them."""
    groups = [(name, value if isinstance(value, dict) else {None: value}) for name, value in figures.items()]
    return [{"figure": name, "member": key, "value": x} for name, group in groups for key, x in group.items()]


def _lines(prefix: str, figures: dict[str, Any]) -> list[str]:
    """`name  value`, groups on one line each."""
    lines = []
    for name, value in figures.items():
        if isinstance(value, dict):
            text = ", ".join(f"{member} {_shown(x)}" for member, x in value.items()) or "-"
        else:
            text = _shown(value)
        lines.append(f"{prefix}{name:27} {text}")
    return lines


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return (
        f"{value:.4g}"
        if isinstance(value, float) and abs(value) < 1e4
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )


@trace.command()
@_reading
@output_option
def convert(output: str | None, **options: Any) -> None:  # noqa: ANN401
    """Read a trace of any format and write it as our own CSV, without losing anything that was read."""
    from slurm_pal.cli.simulate.run import show_bad_rows
    from slurm_pal.simulate.inputs import own

    found = _read(options)
    show_bad_rows(found)
    if not found.jobs:
        raise UsageError(f"{options['file']}: no job in it can be replayed; nothing is written")
    _write(own.as_text(found), output)


@trace.command()
@click.argument("spec", default="")
@output_option
@common.verbose_option
def generate(spec: str, output: str | None) -> None:
    """Draw a trace: SPEC is KEY=VALUE,... as for pal simulate --generate (pal simulate --list has the keys)."""
    from slurm_pal.cli.simulate.trace_inputs import generated
    from slurm_pal.simulate.inputs import own

    _write(own.as_text(generated(spec, DEFAULT_GPUS)), output)


@trace.command("hash")
@click.argument("file", metavar="FILE")
@click.option(
    "--key-file",
    metavar="FILE",
    help="16 to 64 secret bytes: the same key gives the same hashes.  [default: a key that is thrown away]",
)
@output_option
@common.verbose_option
def hash_(file: str, key_file: str | None, output: str | None) -> None:
    """Copy a sacct export with users, accounts and job names replaced by hashes."""
    import io

    from slurm_pal.simulate.inputs.anonymise import anonymise
    from slurm_pal.simulate.inputs.lines import opened

    copy, key = io.StringIO(), _key(key_file)
    with opened(file) as stream:
        left_out = anonymise((raw.decode("utf-8", "replace") for raw in stream), copy, key)
    for row in left_out:
        common.say(f"line {row.line}: left out: {row.reason}", err=True)
    _write(copy.getvalue(), output)


def _key(path: str | None) -> bytes:
    if path is None:
        return secrets.token_bytes(KEY_BYTES)
    try:
        with open(path, "rb") as stream:
            return stream.read(1025)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _write(text: str, path: str | None) -> None:
    from slurm_pal.base.files import write_atomic

    if path is None:
        click.echo(text, nl=False)
        return
    try:
        write_atomic(path, text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name another file with -o") from None
