# SPDX-License-Identifier: MIT
"""What is known of a submission's sensitivity: the stages of the cascade that run before the job exists.

This is on the submit path, so it reads only two small files of labels, the script that is in memory
anyway, and the Python file that it runs, with a limit. A stage that fails gives no class and no message,
since the job only loses the benefit of a guess.
"""

from __future__ import annotations

import os
import stat
import time

from slurm_pal.base.errors import DataError
from slurm_pal.base.jobs import UNKNOWN_CLASS
from slurm_pal.base.light import Mapping, suppress
from slurm_pal.base.terminal import visible
from slurm_pal.sensitivity import keys
from slurm_pal.sensitivity.cascade import HISTORY, SCRIPT, WORD, Evidence, Verdict, decide
from slurm_pal.store import labels, user_files
from slurm_pal.submit.argv import CommandLine
from slurm_pal.submit.script import Script

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.base.config import Config
    from slurm_pal.sensitivity.history import Label
    from slurm_pal.store.localities import Locality

PROGRAM_BYTES = 1 << 14
"""How much of a script and of a Python file is read: imports and model names are at their beginning."""
SCRIPT_BYTES = 1 << 16
"""How much of a script counts for the checksum that identifies it."""


def verdict(
    stated: tuple[str, str], line: CommandLine, script: Script | None, config: Config, environment: Mapping[str, str]
) -> Verdict:
    """The class of a submission; `stated` is what the user stated, (class or "?", where). Never raises."""
    word = None if stated[0] == UNKNOWN_CLASS else Evidence(WORD, stated[0], 1.0, stated[1])
    name, body = job_name(line, script, environment), work_of(line, script)

    def earlier() -> Evidence | None:
        return _history(name, keys.script_digest(body), config, time.time())

    def shown() -> Evidence | None:
        from slurm_pal.sensitivity import features

        text = body[:PROGRAM_BYTES].decode("utf-8", "replace")
        program = _program(features.python_file(text), line) if text else ""
        return features.evidence(text, program, config.apps)

    sure = {stage: config.number("sensitivity", f"{stage}_sure") for stage in (HISTORY, SCRIPT)}
    return decide(word, earlier, (shown,), sure, config.text("sensitivity", "trust"), time.perf_counter)


def job_name(line: CommandLine, script: Script | None, environment: Mapping[str, str]) -> str:
    """The name that sbatch will give the job (sbatch(1), --job-name)."""
    named = [value for option, value in line.options if option == "job-name"]
    if named or environment.get("SBATCH_JOB_NAME"):
        return named[-1] if named else environment["SBATCH_JOB_NAME"]
    own = script.options.found if script and not line.has("wrap") else ()
    inside = [value for option, value in own if option == "job-name"]
    if inside:
        return inside[-1]
    if line.has("wrap"):
        return "wrap"
    return os.path.basename(line.script) if line.script is not None else "sbatch"


def work_of(line: CommandLine, script: Script | None) -> bytes:
    """What the job runs, as far as known here: the words of --wrap, or the script."""
    words = dict(line.options).get("wrap")
    return os.fsencode(words) if words is not None else (script.body[:SCRIPT_BYTES] if script else b"")


def own_labels() -> str:
    """The file of this user's own labels."""
    return labels.path_of(user_files.own_folder(), os.geteuid())


def locality(name: str, gpus: int, config: Config) -> Locality | None:
    """What the steps of this user's earlier jobs of this name showed of the network's share, the newer of the site's
    and the user's own; None where nothing is known. Never raises."""
    from slurm_pal.store import localities

    key = localities.key_of(name, gpus)
    if not key:
        return None
    found: list[Locality] = []
    for folder in (user_files.site_folder(config.snapshot_path), user_files.own_folder()):
        with suppress(DataError):
            one = localities.lookup(localities.LOCALITIES.path_of(folder, os.geteuid()), key)
            found += [one] if one is not None else []
    return max(found, key=lambda one: one.at_s, default=None)


def _history(name: str, digest: str, config: Config, now_s: float) -> Evidence | None:
    """The labels of this script and of this name; the site's or the user's own, whichever is newer."""
    whats = {keys.script_key(digest): "runs of this script", keys.name_key(name): f"jobs named {name}"}
    whats.pop("", "")
    site = labels.path_of(user_files.site_folder(config.snapshot_path), os.geteuid())
    known = [_lookup(path, list(whats)) for path in (site, own_labels())]
    found = [
        _told(max((table[key] for table in known if key in table), key=lambda label: label.seen[-1].at_s), what, now_s)
        for key, what in whats.items()
        if any(key in table for table in known)
    ]
    # A script may do several kinds of work, and so may the jobs of one name: the less mixed label is believed.
    return max(found, key=lambda one: one.confidence, default=None)


def _told(label: Label, what: str, now_s: float) -> Evidence:
    from slurm_pal.sensitivity import history

    return history.evidence(label, visible(what), now_s)


def _lookup(path: str, wanted: list[str]) -> labels.Labels:
    try:
        return labels.lookup(path, wanted)
    except DataError:
        return {}


def _program(name: str, line: CommandLine) -> str:
    """The beginning of a Python file that the script runs, "" where it cannot be read."""
    if not name:
        return ""
    chdir = next((value for option, value in reversed(line.options) if option == "chdir"), "")
    try:
        descriptor = os.open(os.path.join(chdir, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            return os.read(descriptor, PROGRAM_BYTES).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return ""
