# SPDX-License-Identifier: MIT
"""pal lab: a private, real Slurm with emulated GPUs on this machine."""

from __future__ import annotations

import json
import os
import shlex
import textwrap
from typing import Any

import click

from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.base.numbers import digits
from slurm_pal.cli import common, tables
from slurm_pal.cli.gpu import METAVAR, Gpu, Place
from slurm_pal.emulation import gpus as emulated
from slurm_pal.emulation.models import DEFAULT_MODEL
from slurm_pal.lab.directory import LabDirectory, default_directory
from slurm_pal.lab.lab import Lab
from slurm_pal.report.listing import Listing

directory_option = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    help="The lab's directory. Default: $XDG_STATE_HOME/slurm-pal/lab, else ~/.local/state/slurm-pal/lab.",
)
shell_directory_option = click.option(
    "--dir", "directory", metavar="DIR", help="The lab's directory. Default: this shell's lab, else as for pal lab up."
)


FAULT_EXAMPLE = "pal lab fault n1:0 drift 1.3"


def _lab(directory: str | None) -> Lab:
    return Lab(directory or default_directory(os.environ))


def _shells_lab() -> str | None:
    """The directory of the lab that this shell's variables name, as `pal lab env` sets them; None outside a lab.

    Of a lab that is gone, too: another one is not meant.
    """
    conf = os.environ.get("SLURM_CONF", "")
    directory = os.path.dirname(os.path.dirname(conf))
    gone = not os.path.exists(conf) and os.environ.get("SLURM_PAL_CONFIG") == LabDirectory(directory).pal_toml
    return directory if emulated.find_registry(os.environ) or (directory and gone) else None


def _dir_words(directory: str | None) -> str:
    """`--dir D` as the next commands need it, quoted for a shell; nothing for the default directory."""
    return f" --dir {shlex.quote(os.path.abspath(directory))}" if directory else ""


@click.group()
def lab() -> None:
    """Run a private, real Slurm with emulated GPUs in one directory.

    \b
    Examples:
      pal lab up --nodes 8 --gpus 4      all nodes idle in about a second
      eval "$(pal lab env)"; sinfo       use it
      pal lab down                       end it and remove its directory

    Needs no root and writes no file outside its directory.
    Debian packages: slurmctld slurmd slurm-client munge; for --accounting also
    slurmdbd mariadb-server-core mariadb-client-core, for --rest slurmrestd.
    """


@lab.command()
@directory_option
@click.option("--nodes", default=8, show_default=True, help="Number of nodes, n0, n1, ...")
@click.option("--gpus", default=4, show_default=True, help="GPUs per node.")
@click.option("--seed", default=1, show_default=True, help="Draws the true slowdowns of the GPUs.")
@click.option("--gpu-table", metavar="CSV", help="Read the slowdowns from a file: node,index,A,B,C[,uuid,model].")
@click.option(
    "--model",
    default=DEFAULT_MODEL,
    show_default=True,
    help="Model name of the GPUs; some behave in their own way (docs/lab.md).",
)
@click.option("--cpus", default=16, show_default=True, help="CPUs per node, as Slurm sees them.")
@click.option("--memory-mib", default=64000, show_default=True, help="Memory per node, as Slurm sees it, MiB.")
@click.option(
    "--filter", "submit_filter", is_flag=True, help="With the submit filter, and the SPANK plug-in if it can be built."
)
@click.option("--accounting", is_flag=True, help="With slurmdbd and MariaDB: sacct, accounts, QOS, fair share.")
@click.option("--rest", is_flag=True, help="With slurmrestd on the socket DIR/run/rest.sock.")
@click.option("--partitions", metavar="FILE", help="Partitions and preemption from a TOML file (docs/lab.md).")
@click.option("--topology", metavar="FILE", help="Switches or blocks of the nodes, a topology.conf (docs/lab.md).")
@click.option(
    "--locality-penalty",
    metavar="FACTOR,...",
    default=f"{emulated.LOCALITY_PENALTY:g}",
    show_default=True,
    help="Factor of work across nodes: on one leaf, below the switch above it, ...",
)
@click.option(
    "--cloud", default=0, show_default=True, help="So many nodes, the last ones, sleep until a job needs them."
)
@click.option("--wait-s", default=60.0, show_default=True, help="Give up if not all nodes are idle after this time, s.")
@common.verbose_option
def up(directory: str | None, wait_s: float, locality_penalty: str, **size: Any) -> None:  # noqa: ANN401  # checked there
    """Start a lab, and wait until all its nodes are idle."""
    try:
        size["locality_penalties"] = [float(word) for word in locality_penalty.split(",")]
    except ValueError:
        raise UsageError(f"--locality-penalty {locality_penalty!r} must be factors like 1.7 or 1.4,2.5") from None
    started = Lab.up(directory or default_directory(os.environ), wait_s=wait_s, **size)
    words = _dir_words(directory)
    common.say(
        f"{size['nodes']} nodes x {size['gpus']} GPUs idle after {started.idle_after_s:.1f} s in {started.directory}"
    )
    if size["submit_filter"]:
        missing = f", without the SPANK plug-in ({started.without_plugin})" if started.without_plugin else ""
        common.say(f"submit filter in {started.directory('etc')}{missing}")
    accounts = "\n  sshare -a                      # accounts guest and owner" if size["accounting"] else ""
    hints = f"""Next:
  eval "$(pal lab env{words})"    # point this shell's Slurm commands at the lab
  sinfo{accounts}
  pal-profile run                # measure the GPUs
{_try(size["submit_filter"], started.without_plugin)}
  pal lab down{words}"""
    common.say(*hints.split("\n"))


def _try(submit_filter: bool, without_plugin: str) -> str:
    """The lines that show a job on the GPUs that suit it."""
    job = "--gres=gpu:1 --wrap 'pal lab work --class A --seconds 20'"
    if not submit_filter:
        return f"  palsub --pal-class A {job}"
    wanted = "SLURM_PAL_CLASS=A sbatch" if without_plugin else "sbatch --pal-class=A --pal-explain"
    return f"  pal publish-table --every 2 &  # show the filter what is free, and take leases back\n  {wanted} {job}"


@lab.command()
@shell_directory_option
@click.option("--keep", is_flag=True, help="Keep the files, logs among them.")
@common.verbose_option
def down(directory: str | None, keep: bool) -> None:
    """Cancel all jobs of a lab, end its processes and remove its directory.

    It ends only processes of this lab, also those that a crash left behind. Files in the
    directory that are not the lab's stay. Running it twice does no harm.
    """
    target = _lab(directory or _shells_lab())
    ended = target.down(keep=keep)
    common.say(f"{ended.processes_ended} processes ended, {ended.jobs_cancelled} jobs cancelled: {target.directory}")
    if ended.leftovers:
        common.say(f"kept {target.directory} for what is not the lab's: {', '.join(ended.leftovers[:5])}", err=True)


@lab.command()
@shell_directory_option
@common.json_option
@common.verbose_option
@click.pass_context
def status(context: click.Context, directory: str | None, as_json: bool) -> None:
    """Show whether a lab runs, its nodes and its jobs. Exit code 0 only when all of it runs."""
    now = _lab(directory or _shells_lab()).status()
    if as_json:
        common.print_json("lab-status", now._asdict())
    elif now.state == "down":
        common.say(f"no lab runs in {now.directory}")
    else:
        common.say(f"{now.state}: {now.nodes} nodes x {now.gpus_per_node} GPUs, Slurm {now.slurm}, in {now.directory}")
        for name, counts in (("daemons", now.daemons), ("nodes", now.node_states), ("jobs", now.jobs)):
            common.say(f"{name}: {', '.join(f'{count} {what}' for what, count in counts.items()) or 'none'}")
    context.exit(Exit.OK if now.state == "up" else Exit.FAILED)


@lab.command()
@directory_option
@common.verbose_option
def env(directory: str | None) -> None:
    """Print exports for a shell: eval "$(pal lab env)"."""
    target = _lab(directory)
    target.require()
    for name, value in target.variables().items():
        click.echo(f"export {name}={shlex.quote(value)}")


@lab.command()
@click.option("--class", "sensitivity", metavar="A|B|C", default="A", show_default=True, help="Sensitivity class.")
@click.option("--seconds", default=20.0, show_default=True, help="Time on one median GPU, s.")
@click.option("--locality-penalty", type=float, help="Factor when the GPUs span nodes (default: that of pal lab up).")
@click.option("--checkpoint", metavar="FILE", default="", help="Resume from FILE; write it at SIGUSR1.")
@click.option("--steps", type=click.IntRange(min=0), default=0, help="Report this many steps through pal progress.")
@click.option(
    "--collectives", is_flag=True, help="Leave records of collectives, as the inspector plug-in of NCCL does."
)
@common.json_option
@common.verbose_option
def work(
    sensitivity: str, seconds: float, locality_penalty: float | None, checkpoint: str, steps: int, collectives: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Act as a job: run for as long as the slowest of this job's GPUs would take."""
    from slurm_pal.lab import payload

    record = payload.run(sensitivity, seconds, locality_penalty, checkpoint, steps, collectives)
    click.echo(json.dumps(record) if as_json else payload.describe(record))


def _registry_path(directory: str | None) -> str:
    """The lab's own file: that of --dir, else of the shell's lab, else of the default directory."""
    if directory is None and (found := emulated.find_registry(os.environ)):
        return found
    target = _lab(directory)
    target.require()
    return target.directory.registry


@lab.command()
@shell_directory_option
@tables.table_options
@common.verbose_option
def gpus(directory: str | None, form: tables.Form) -> None:
    """Reveal the hidden truth: the true slowdowns and faults of the emulated GPUs."""
    registry = emulated.load_registry(_registry_path(directory))
    columns = ("node", "index", "uuid", "model", *(f"slowdown_{c}" for c in emulated.CLASSES), "faults")
    cells = [
        [gpu.node, str(gpu.index), gpu.uuid, *(f"{gpu.slowdown[c]:.4f}" for c in emulated.CLASSES), _faults(gpu)]
        for gpu in registry.gpus
    ]
    words = {gpu.uuid: _fault_words(gpu) for gpu in registry.gpus}
    listing = Listing(
        columns, [gpu._asdict() for gpu in registry.gpus], ("NODE", "GPU", "UUID", *emulated.CLASSES, "FAULTS"), cells,
        {"GPU": "index", **{c: f"slowdown_{c}" for c in emulated.CLASSES}}, [bool(word) for word in words.values()],
    )  # fmt: skip
    if not form.as_json:  # which has faults as an object of their figures
        listing = listing._replace(rows=[{**row, "faults": words[row["uuid"]]} for row in listing.rows])
    tables.show(form, listing, "lab-gpus", lambda told: {"seed": registry.seed, "gpus": told})


def _faults(gpu: emulated.EmuGpu) -> str:
    return ",".join(_fault_words(gpu)) or "-"


def _fault_words(gpu: emulated.EmuGpu) -> list[str]:
    return [name if value is True else f"{name}={value:g}" for name, value in gpu.faults.items()]


def _fault_lines() -> str:
    """The faults as help lines."""
    flags = [f"  {name}: {what}" for name, what in emulated.FLAGS.items()]
    return "\n".join([*flags, *(f"  {name} FACTOR: {what}" for name, what in emulated.FACTORS.items())])


@lab.command(
    help=f"""Give a GPU a fault, or take it away with VALUE "off".

    A GPU is NODE:INDEX, or at least 8 characters of its UUID after GPU-: {FAULT_EXAMPLE}

    \b
    NAME is one of
{textwrap.indent(_fault_lines(), "    ")}
    """
)
@shell_directory_option
@click.argument("words", metavar=f"{METAVAR} NAME [VALUE]", nargs=-1)
@common.verbose_option
def fault(directory: str | None, words: tuple[str, ...]) -> None:
    """Give a GPU a fault, or take it away."""
    if len(words) > 1 and digits(words[1]) is not None:  # NODE INDEX, the earlier form
        words = (f"{words[0]}:{words[1]}", *words[2:])
    if not 2 <= len(words) <= 3:
        raise UsageError(f"give a GPU, a fault and perhaps a value ({len(words)} given): {FAULT_EXAMPLE}")
    path = _registry_path(directory)
    at = _place(path, Gpu(words[0]))
    gpu = emulated.set_fault(path, at.node, at.gpu_index, words[1], _fault_value(words[2] if len(words) == 3 else None))
    common.say(f"{at.node}:{at.gpu_index} {gpu.uuid} faults: {_faults(gpu)}")


def _fault_value(text: str | None) -> float | bool | None:
    if text is None or text == "off":
        return True if text is None else None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"VALUE {text!r} must be a factor like 1.3, or off") from None


@lab.command()
@shell_directory_option
@click.argument("one", type=Gpu, metavar=METAVAR)
@click.argument("other", type=Gpu, metavar=METAVAR)
@common.verbose_option
def swap(directory: str | None, one: Gpu, other: Gpu) -> None:
    """Exchange two GPUs between their slots, as a technician would.

    A GPU is NODE:INDEX, or at least 8 characters of its UUID after GPU-.
    """
    path = _registry_path(directory)
    first, second = _place(path, one), _place(path, other)
    emulated.swap_gpus(path, first[:2], second[:2])
    common.say(f"{first.node}:{first.gpu_index} and {second.node}:{second.gpu_index} exchanged")


def _place(path: str, gpu: Gpu) -> Place:
    """Where a GPU of the lab is. Raises UsageError."""
    return gpu.among(Place(known.node, known.index, known.uuid) for known in emulated.load_registry(path).gpus)
