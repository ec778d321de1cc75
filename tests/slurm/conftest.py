# SPDX-License-Identifier: MIT
"""Real Slurm for tests: one small lab for all of a session, and places for labs of a test's own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import pytest

from slurm_pal.base.errors import MissingPackageError, UsageError
from slurm_pal.lab import filter as lab_filter
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.programs import account_name, find_programs
from slurm_pal.slurm.cli import CliClient

from .open_python import USERS, OpenPython, open_python


def skip_without_slurm(accounting: bool = False) -> None:
    """Skip, saying what is missing, where no lab can run."""
    try:
        find_programs(accounting)
        account_name()
    except (MissingPackageError, UsageError) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", autouse=True)
def one_plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The plug-in of labs is built once for all that pytest has started together, not for each lab."""
    folder, build = tmp_path_factory.getbasetemp(), lab_filter._build
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    built = folder / lab_filter.PLUGIN

    def build_once(directory: LabDirectory) -> str:
        with open(f"{built}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if built.exists():
                shutil.copyfile(built, directory("etc", lab_filter.PLUGIN))
                return ""
            trouble = build(directory)
            if not trouble:
                shutil.copyfile(directory("etc", lab_filter.PLUGIN), built)
            return trouble

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab_filter, "_build", build_once)
        yield


@contextlib.contextmanager
def short_directory() -> Iterator[str]:
    """A directory with a name short enough for Slurm's sockets (tmp_path is not); its lab always ends."""
    path = tempfile.mkdtemp(prefix="pal")
    try:
        yield os.path.join(path, "lab")
    finally:
        with contextlib.suppress(UsageError):  # no lab there any more
            Lab(os.path.join(path, "lab")).down()
        shutil.rmtree(path)


@contextlib.contextmanager
def client_of_lab(edits: Sequence[tuple[str, str]]) -> Iterator[CliClient]:
    """Slurm of a lab of 4 nodes x 4 GPUs with this slurm.conf; it is what this process's environment means."""
    skip_without_slurm()
    with (
        short_directory() as path,
        Lab.up(path, nodes=4, gpus=4, seed=1, conf_edits=edits) as lab,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in lab.variables().items():
            patch.setenv(name, value)
        yield CliClient(conf=lab.variables()["SLURM_CONF"])


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A running lab of 4 nodes x 4 GPUs; use `lab.environ()` for the environment of subprocesses."""
    skip_without_slurm()
    with short_directory() as path, Lab.up(path, nodes=4, gpus=4, seed=1) as running:
        yield running


@pytest.fixture(scope="module")
def python() -> Iterator[OpenPython]:
    """A Python that all users can run."""
    path = tempfile.mkdtemp(prefix="palp")
    try:
        os.chmod(path, 0o755)
        yield open_python(path, *pwd.getpwnam(USERS[0])[2:4])
    finally:
        shutil.rmtree(path)


@pytest.fixture
def lab_dir() -> Iterator[str]:
    """A place for a lab of the test's own; whatever the test does to it, nothing stays."""
    skip_without_slurm()
    with short_directory() as path:
        yield path
