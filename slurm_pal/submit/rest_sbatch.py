# SPDX-License-Identifier: MIT
"""sbatch where it is not at hand: the same command line, environment and script, handed to slurmrestd.

palsub, `pal probe` and sweeps start it in the place of sbatch where slurm.backend is "rest" (`rest_program`). A job is
sent at most once. Where it has surely not been sent and Slurm's own sbatch is in PATH, this becomes sbatch.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Mapping

from slurm_pal.base.config import load
from slurm_pal.base.errors import AnswerLostError, Exit, NotByRestError, PalError, RefusedError, UsageError, one_line
from slurm_pal.base.light import suppress
from slurm_pal.base.terminal import visible
from slurm_pal.decide.request import Conflict
from slurm_pal.slurm import rest_wire
from slurm_pal.slurm.rest_door import Door, Row
from slurm_pal.slurm.rest_program import BY_SBATCH, MAY_EXIST, NOT_BY_REST
from slurm_pal.submit import rest_options, run_sbatch
from slurm_pal.submit.argv import CommandLine, parse
from slurm_pal.submit.checkpoint import WRAP
from slurm_pal.submit.known import job_name
from slurm_pal.submit.options import merge
from slurm_pal.submit.processes import which
from slurm_pal.submit.script import Input, Script, find, from_file, from_stdin, scan

MORE_ENVIRONMENT = {
    "SBATCH_ACCOUNT": "account", "SBATCH_ACCTG_FREQ": "acctg-freq", "SBATCH_BATCH": "batch",
    "SBATCH_CONTAINER": "container", "SBATCH_CONTAINER_ID": "container-id", "SBATCH_CPU_FREQ_REQ": "cpu-freq",
    "SBATCH_DELAY_BOOT": "delay-boot", "SBATCH_ERROR": "error", "SBATCH_EXPORT": "export",
    "SBATCH_GET_USER_ENV": "get-user-env", "SBATCH_GPU_BIND": "gpu-bind", "SBATCH_GPU_FREQ": "gpu-freq",
    "SBATCH_INPUT": "input", "SBATCH_MEM_BIND": "mem-bind", "SLURM_MEM_BIND": "mem-bind", "SBATCH_NETWORK": "network",
    "SBATCH_NO_KILL": "no-kill", "SBATCH_OPEN_MODE": "open-mode", "SBATCH_OUTPUT": "output", "SBATCH_POWER": "power",
    "SBATCH_PROFILE": "profile", "SBATCH_QOS": "qos", "SBATCH_SIGNAL": "signal", "SBATCH_TRES_BIND": "tres-bind",
    "SBATCH_WAIT": "wait", "SBATCH_WAIT_ALL_NODES": "wait-all-nodes", "SBATCH_WCKEY": "wckey",
    "SBATCH_BURST_BUFFER": "bb", "SBATCH_CLUSTER_CONSTRAINT": "cluster-constraint", "SBATCH_SEGMENT_SIZE": "segment",
    "SBATCH_SPREAD_SEGMENTS": "spread-segments", "SBATCH_CONSOLIDATE_SEGMENTS": "consolidate-segments",
    "SBATCH_CONTAINER_TYPE": "container-type",
}  # fmt: skip
"""sbatch(1), INPUT ENVIRONMENT VARIABLES: those that options_table leaves out, but for _WAIT."""
_WAIT = "SBATCH_WAIT4SWITCH"
"""What stands behind the @ in --switches, where the command line does not say it."""
_LIMITS = ("CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS")
_ENDLESS = 2**64 - 1
_REQUEUE = {"SBATCH_NO_REQUEUE": "no-requeue", "SBATCH_REQUEUE": "requeue"}  # in the order in which sbatch looks
_MAILS_ADD_UP = 42
"""Up to Slurm 24.11 each --mail-type adds to those before it; in 26.05 the last one counts. None between was run."""
TIMEOUT_S = 60.0  # sbatch's own patience is about that

Asked = Mapping[str, str]


def main(words: list[str]) -> int:
    """Submit one job, and print what sbatch prints; the exit code is sbatch's."""
    given: Input | None = None
    try:
        line = parse(words)
        if line.has("help", "usage", "version"):
            raise NotByRestError("only sbatch shows its help and version: use a host with sbatch, or palsub --pal-help")
        if line.script is None and not line.has("wrap"):
            given = from_stdin()
        door = _door()
        asked, body = made(line, dict(os.environ), given, door)
    except Exception as error:  # whatever it is, nothing has been sent
        return _instead(words, given, error)
    try:
        done = door.submit(body)
    except (AnswerLostError, RefusedError) as error:
        what = "slurmrestd refused the job" if isinstance(error, RefusedError) else MAY_EXIST
        _say(f"{what}: {one_line(error)}")
        return Exit.FAILED
    except PalError as error:
        return _instead(words, given, error)
    for text in done.said.splitlines():
        _say(visible(text))
    if "quiet" not in asked:
        _print(f"{done.job_id}" if "parsable" in asked else f"Submitted batch job {done.job_id}")
    return Exit.OK


def _door() -> Door:
    """Raises ConfigError."""
    config = load()
    address = rest_wire.address(config.text("slurm", "rest"))
    return Door(rest_wire.Wire(address, rest_wire.token(config.text("slurm", "rest_token")), TIMEOUT_S))


def made(line: CommandLine, surroundings: dict[str, str], given: Input | None, door: Door) -> tuple[Asked, Row]:
    """The options in force, and what is posted for them. Raises PalError for what sbatch's job would not be."""
    script = _script(line, given)
    if line.hetjob or (script and script.hetjob):
        raise NotByRestError(f"slurmrestd {NOT_BY_REST} a heterogeneous job: submit it where sbatch is")
    if script and script.doubt:
        raise UsageError(script.doubt)
    asked = in_force(line, surroundings, script)
    if door.version <= _MAILS_ADD_UP:
        asked |= _mails(line, script)
    if script and script.foreign and "ignore-pbs" not in asked:
        raise NotByRestError(
            f"slurmrestd {NOT_BY_REST} #PBS or #BSUB lines, which only sbatch translates: use --ignore-pbs"
        )
    new, name = door.writes_new_form, job_name(line, script, surroundings)
    told = rest_options.variables(asked, door.version, name) | _own_state()
    chdir = asked.get("chdir")
    folder = os.path.join(os.getcwd(), chdir) if chdir else os.getcwd()  # as written: .. may stand behind a link
    told |= {"SLURM_SUBMIT_DIR": os.getcwd(), "SLURM_SUBMIT_HOST": socket.gethostname()}
    around = rest_options.environment(surroundings, door.version, asked.get("export", ""), told)
    known = door.job_keys() if new else None
    job = rest_options.job(
        asked, door.version, name, _arguments(line), folder, around, _requeue(line, surroundings, script), known
    )
    body = (WRAP + os.fsencode(asked["wrap"]) + b"\n") if script is None else script.body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise NotByRestError(f"slurmrestd {NOT_BY_REST} a script that is not UTF-8: convert it") from None
    return asked, {"job": job | {"script": text}} if new else {"job": job, "script": text}


def _script(line: CommandLine, given: Input | None) -> Script | None:
    """The script; None with --wrap. Raises UsageError where there is none."""
    if line.has("wrap"):
        if line.script is not None:
            raise UsageError("sbatch accepts no script with --wrap")
        return None
    if line.script is not None:
        return from_file(line.script, _chdir(line))
    if given is None:
        raise UsageError("the script comes from a terminal or a device: name a file")
    return scan(given.body)._replace(body=given.body)


def _chdir(line: CommandLine) -> str | None:
    return next((value for name, value in reversed(line.options) if name == "chdir"), None)


def _arguments(line: CommandLine) -> tuple[str, ...]:
    """The script's own words, after its path."""
    if line.script is None:
        return ()
    words = line.after[1:] if line.after[:1] == ("--",) else line.after
    path = line.script if line.script.startswith(("/", ".")) else find(line.script, _chdir(line)) or line.script
    return (path, *words[1:])


def in_force(line: CommandLine, surroundings: Asked, script: Script | None) -> dict[str, str]:
    """All options of sbatch in force, name -> value. Raises UsageError where the words cannot be read."""
    if line.unsure:
        raise UsageError(line.unsure)
    try:
        asked = merge(line, surroundings, script)
    except Conflict as reason:
        raise UsageError(str(reason)) from None
    variables = {name: surroundings[key] for key, name in MORE_ENVIRONMENT.items() if surroundings.get(key)}
    asked |= {name: value for name, value in variables.items() if not line.has(name)}
    count, said, _ = asked.get("switches", "").partition("@")
    own = any(name == "switches" and "@" in value for name, value in line.options)
    if count and surroundings.get(_WAIT) and not (said and own):
        asked["switches"] = f"{count}@{surroundings[_WAIT]}"
    return asked


def _requeue(line: CommandLine, surroundings: Asked, script: Script | None) -> bool | None:
    """Whether the job may be requeued, where that is said: the last word counts, as for sbatch."""
    own = script.options.found if script and not line.has("wrap") else ()
    names = [name for name, _ in own]
    names += [name for key, name in _REQUEUE.items() if key in surroundings]
    said = [name for name in (*names, *(name for name, _ in line.options)) if name in _REQUEUE.values()]
    return said[-1] == "requeue" if said else None


def _mails(line: CommandLine, script: Script | None) -> dict[str, str]:
    """All of --mail-type that was said."""
    own = script.options.found if script and not line.has("wrap") else ()
    said = [value for name, value in (*own, *line.options) if name == "mail-type"]
    kinds = [value for value in said if value.upper() != "NONE"] or said[-1:]
    return {"mail-type": ",".join(kinds)} if kinds else {}


def _own_state() -> dict[str, str]:
    """What sbatch hands on of the submitting process: limits, mask and niceness."""
    mask = os.umask(0)
    os.umask(mask)
    found = {"SLURM_UMASK": f"{mask:04o}", "SLURM_PRIO_PROCESS": str(os.getpriority(os.PRIO_PROCESS, 0))}
    for name in _LIMITS:
        soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        found[f"SLURM_RLIMIT_{name}"] = str(_ENDLESS if soft == resource.RLIM_INFINITY else soft)
    return found


def _instead(words: list[str], given: Input | None, error: Exception) -> int:
    """Nothing was sent: become sbatch where it is in PATH, else say why there is no job."""
    why = one_line(error) if isinstance(error, PalError) else f"{type(error).__name__}: {one_line(error)}"
    path, _ = which("sbatch")
    if path is None:
        _say(f"not submitted: {why}")
        return error.exit_code if isinstance(error, PalError) else Exit.FAILED
    _say(f"{BY_SBATCH}{why}")
    try:
        run_sbatch.replace(path, ["sbatch", *words], given.stdin if given else None)
    except OSError as failed:
        _say(f"{path}: {failed.strerror}")
    return 126


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"palsub: {text}\n".encode(errors="replace"))


def _print(text: str) -> None:
    """Raises nothing: the job exists, whoever reads that."""
    with suppress(OSError):
        os.write(1, f"{text}\n".encode())
