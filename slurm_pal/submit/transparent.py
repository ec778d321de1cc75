# SPDX-License-Identifier: MIT
"""Transparent checkpoints: CRIU writes the processes of a job to disk that knows nothing of checkpoints.

Here is decided which jobs can have them, as far as that shows at submission; `transparent.sh` does the rest in the
job, and refuses there what shows only then. Nothing is started here: the site's files are only looked at.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

from slurm_pal.base.errors import UsageError
from slurm_pal.decide.request import Conflict
from slurm_pal.submit.argv import CommandLine
from slurm_pal.submit.checkpoint import quoted
from slurm_pal.submit.choice import HELD, TRANSPARENT
from slurm_pal.submit.known import work_of
from slurm_pal.submit.options import merge
from slurm_pal.submit.script import SHELLS, Script, interpreter

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.base.config import Config

STARTERS = ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
"""What starts processes as children of Slurm's daemons, or on other nodes."""
PLUGINS = ("/usr/lib/criu", "/usr/lib64/criu", "/usr/local/lib/criu", "/usr/local/lib64/criu")
"""Where CRIU looks for its plug-in for CUDA."""
_ONE = ("", "1", "1-1")


def checked(said: str) -> None:
    """Raises UsageError for a word that begins as ours and is none."""
    if said not in (TRANSPARENT, HELD):
        raise UsageError(f"checkpoint {said!r} is neither {TRANSPARENT} nor {HELD}")


def lacks(
    line: CommandLine, environment: Mapping[str, str], script: Script | None, elastic: bool, config: Config
) -> str:
    """Why a job cannot have transparent checkpoints; "" where nothing shows that."""
    if trouble := _of_site(config):
        return trouble
    if elastic:
        return "an elastic job has processes on several nodes"
    try:
        merged = merge(line, environment, script)
    except Conflict as reason:
        return str(reason)
    if merged.get("nodes", "") not in _ONE:
        return f"the job asks for --nodes={merged['nodes']}, and only processes of one node can be written together"
    for name in ("ntasks", "ntasks-per-node"):
        if merged.get(name, "") not in _ONE:
            return f"the job asks for --{name}={merged[name]}, and only one task can be written"
    return _of_script(work_of(line, script))


def lacks_for_gpus(config: Config) -> str:
    """Why processes that use a GPU cannot be written, as far as files show it."""
    from slurm_pal.submit.processes import which

    prefix = os.path.dirname(os.path.dirname(config.text("submit", "criu")))
    places = {os.path.join(prefix, "lib", "criu"), *PLUGINS}
    if any(os.path.exists(os.path.join(place, "cuda_plugin.so")) for place in places) and which("cuda-checkpoint")[0]:
        return ""
    return "the job asks for GPUs, and CRIU's plug-in for CUDA or cuda-checkpoint is not here"


def _of_site(config: Config) -> str:
    folder, program = config.text("submit", "checkpoint_images"), config.text("submit", "criu")
    if not folder:
        return "the site has no folder for images (submit.checkpoint_images)"
    for name, path in (("checkpoint_images", folder), ("criu", program)):
        if not os.path.isabs(path):
            return f"submit.{name} = {path!r} is not an absolute path"
    try:
        mode = os.stat(folder).st_mode
    except OSError as error:
        return f"{folder}: {error.strerror} (submit.checkpoint_images)"
    if not stat.S_ISDIR(mode):
        return f"{folder} is no folder (submit.checkpoint_images)"
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return f"{folder} has no sticky bit: others could replace a user's images (chmod +t)"
    if not os.access(program, os.X_OK):
        return f"there is no program {program} (submit.criu)"
    return ""


def _of_script(body: bytes) -> str:
    if body.startswith(b"#!") and interpreter(body) not in SHELLS:
        return ""
    text = body.decode("utf-8", "replace")
    if not re.search(r"\b(?:srun|mpi|orterun|prterun)", text):
        return ""
    from slurm_pal.submit.command_lines import programs

    for one in programs(text, STARTERS):
        return f"line {one.number}: processes that {one.name} starts are not the script's own"
    return ""


def part(said: str, config: Config) -> bytes:
    """What such a job does beside its script (`transparent.sh`). Raises OSError if it cannot be read."""
    with open(os.path.join(os.path.dirname(__file__), "transparent.sh"), "rb") as stream:
        template = stream.read()
    filled = {
        b"FOLDER": config.text("submit", "checkpoint_images"), b"CRIU": config.text("submit", "criu"),
        b"HOLD": str(int(said == HELD)),
    }  # fmt: skip
    return re.sub(rb"@([A-Z]+)@", lambda place: quoted(os.fsencode(filled[place[1]])), template)
