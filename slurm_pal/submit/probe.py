# SPDX-License-Identifier: MIT
"""A probe: the user's own script as a short job on one GPU, with an observer. Pure except for reading the script.

Options in the script or on the command line that ask for more than that, or for another time, are not
passed to sbatch; all others (partition, account, environment, memory) stay.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from math import ceil

from slurm_pal.base.errors import UsageError
from slurm_pal.base.light import NamedTuple
from slurm_pal.sensitivity.cascade import PROBE
from slurm_pal.sensitivity.keys import PROBES
from slurm_pal.submit import known, observing
from slurm_pal.submit.argv import CommandLine, SiteOptions, parse, read_options, without
from slurm_pal.submit.options import build
from slurm_pal.submit.options_table import ENVIRONMENT
from slurm_pal.submit.script import Script, from_file, split_words

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.base.config import Config

DROPPED = frozenset({
    "array", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "tres-per-task", "ntasks-per-gpu",
    "nodes", "ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "exclusive", "nodelist", "nodefile",
    "switches", "contiguous", "segment", "spread-job", "time", "time-min", "job-name", "begin", "deadline",
    "dependency", "hold", "mail-type", "mail-user", "requeue", "no-requeue", "wait", "parsable", "quiet", "test-only",
})  # fmt: skip
"""Options of sbatch that a probe leaves out."""
SPARE_S = 50.0
"""Added to the seconds of activity, for what a program does before it computes."""


class Prepared(NamedTuple):
    """A probe that can be submitted."""

    argv: tuple[str, ...]  # with the path in it, if there is one
    path: str  # of the script that sbatch gets, not written yet; "" with --wrap
    text: bytes
    name: str  # of the job that it stands for


def prepared(words: list[str], environment: Mapping[str, str], config: Config, site: SiteOptions) -> Prepared:
    """A probe of the script (or --wrap) in these words of sbatch.

    Raises UsageError if there is no script or it cannot be read, CannotWrap if no observer can be put into it.
    """
    line = parse(words, site)
    if line.pal:
        raise UsageError(f"--pal-{line.pal[0][0]} is palsub's: pal probe takes options of sbatch, and a script")
    if line.script is None and not line.has("wrap"):
        raise UsageError("give a script or --wrap: pal probe train.sh, pal probe --wrap 'python3 train.py'")
    script = None
    if line.script is not None:
        chdir = next((value for option, value in reversed(line.options) if option == "chdir"), None)
        script = from_file(line.script, chdir)
        if script.doubt:
            raise UsageError(script.doubt)
    name = known.job_name(line, script, environment)
    kind = _gpu_type(line, script, environment)
    active_s = config.number("sensitivity", "active_s")
    seconds = active_s + SPARE_S
    line = _reduced(line, site)
    if script is not None:
        script = script._replace(body=reduced(script.body))
    sent, script = observing.observed(line, script, config, seconds, site, PROBE)
    path, text, sent = observing.sending(sent, script)
    output = () if line.has("output") else ("--output=/dev/null",)
    ours = (
        "--parsable", "--nodes=1", "--ntasks=1", f"--gres=gpu:{kind}1", f"--time={ceil((seconds + 10) / 60)}",
        "--no-requeue", f"--job-name={PROBES}{name}", *output,
    )  # fmt: skip
    return Prepared(("sbatch", *sent.before, *ours, *sent.after), path, text, name)


def environment_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for sbatch, without variables for options that a probe leaves out."""
    gone = {key for key, name in ENVIRONMENT.items() if name in DROPPED and key.startswith("SBATCH_")}
    return {key: value for key, value in environment.items() if key not in gone | {"SBATCH_JOB_NAME", "SLURM_HOSTFILE"}}


def _gpu_type(line: CommandLine, script: Script | None, environment: Mapping[str, str]) -> str:
    """ "a100:" if the job asks for GPUs of a type, else ""."""
    shape = build(line, environment, script).shape
    return f"{shape.gpu_type}:" if shape is not None and shape.gpu_type else ""


def _reduced(line: CommandLine, site: SiteOptions) -> CommandLine:
    before = line.before
    for name in {name for name, _ in line.options} & DROPPED:
        before = without(before, name, site)
    return line._replace(before=before, options=tuple(pair for pair in line.options if pair[0] not in DROPPED))


def reduced(body: bytes) -> bytes:
    """The script without the #SBATCH options that a probe leaves out; all other lines keep their place."""
    lines = body.split(b"\n")
    for number, text in enumerate(lines):
        if text.startswith(b"#SBATCH"):
            lines[number] = _reduced_line(text)
        elif text.strip() and not text.lstrip().startswith(b"#"):
            break
    return b"\n".join(lines)


def _reduced_line(text: bytes) -> bytes:
    words = split_words(text[len(b"#SBATCH") :].decode(errors="surrogateescape"))
    if words is None:
        return text
    found = {name for name, _ in read_options(words).found}
    # The probe's output would overwrite the script's own.
    gone = found & (DROPPED | {"output", "error"})
    if not gone:
        return text
    kept = tuple(words)
    for name in gone:
        kept = without(kept, name)
    return f"#SBATCH {shlex.join(kept)}".encode(errors="surrogateescape") if kept else b"#"
