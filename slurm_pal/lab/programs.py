# SPDX-License-Identifier: MIT
"""Which programs a lab needs, where they are, and which Slurm they are."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess

from slurm_pal.base.errors import MissingPackageError, SlurmError, UsageError
from slurm_pal.slurm import releases

NEEDED = ("slurmctld", "slurmd", "munged", "sinfo", "squeue", "scancel", "scontrol")
ACCOUNTING = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db", "my_print_defaults")
REST = ("slurmrestd",)
PACKAGES = "slurmctld slurmd slurm-client munge"
ACCOUNTING_PACKAGES = "slurmdbd mariadb-server-core mariadb-client-core"
REST_PACKAGES = "slurmrestd"
SYSTEM_PATHS = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # not in an ordinary user's PATH


def find_programs(accounting: bool = False, rest: bool = False) -> dict[str, str]:
    """Name -> absolute path, with those of `accounting` and `rest`. Raises MissingPackageError naming the apt line."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_PATHS])
    wanted = (*NEEDED, *(ACCOUNTING if accounting else ()), *(REST if rest else ()))
    found = {name: shutil.which(name, path=path) for name in wanted}
    missing = [name for name, place in found.items() if place is None]
    if missing:
        kinds = ((NEEDED, PACKAGES), (ACCOUNTING, ACCOUNTING_PACKAGES), (REST, REST_PACKAGES))
        packages = [text for names, text in kinds if {*names} & {*missing}]
        extras = [word for word, on in (("accounting", accounting), ("slurmrestd", rest)) if on]
        what = f"a lab with {' and '.join(extras)}" if extras else "a lab"
        line = f"apt-get install {' '.join(packages)}"
        raise MissingPackageError(f"{what} needs {', '.join(missing)}, which cannot be found: {line}")
    return {name: place for name, place in found.items() if place is not None}


def slurm_version(slurmctld: str) -> tuple[int, int]:
    """The release of a slurmctld, like (22, 5). Raises SlurmError."""
    try:
        done = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{slurmctld} -V cannot be run: {error}") from None
    if done.returncode != 0:
        raise SlurmError(f"{slurmctld} -V failed: {(done.stdout or done.stderr).strip()!r}")
    return releases.printed(done.stdout, f"{slurmctld} -V")


def account_name() -> str:
    """The name of the calling user. Raises UsageError when the uid has no account: Slurm runs no job for it."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise UsageError(f"uid {uid} has no account (getent passwd {uid}), so Slurm can run no job for it") from None


def bare_environment() -> dict[str, str]:
    """This environment without variables that steer Slurm: a lab may be started in a job."""
    foreign = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_", "CUDA_VISIBLE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
