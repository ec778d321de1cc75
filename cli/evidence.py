# SPDX-License-Identifier: MIT
"""pal evidence: the bundle that a vendor asks for when a GPU goes back."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Mapping

import click

from slurm_pal.base import config as settings
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, MissingPackageError, UsageError, one_line
from slurm_pal.base.files import write_atomic
from slurm_pal.cli import common, output_file
from slurm_pal.cli.gpu import METAVAR, Gpu, measured
from slurm_pal.store import snapshot
from slurm_pal.store.database import Database, open_database


@click.command()
@click.argument("gpu", type=Gpu, metavar=METAVAR)
@click.option("-o", "--output", metavar="FILE", help="Where to write it (default: evidence-UUID.tar.gz here).")
@click.option("--dir", "as_directory", is_flag=True, help="Write a directory instead of a .tar.gz.")
@common.verbose_option
def evidence(gpu: Gpu, output: str | None, as_directory: bool) -> None:
    """Write all that is known about one GPU into a bundle for its vendor.

    The GPU is NODE:INDEX (the one measured there last), or at least 8 characters of its UUID after GPU-;
    `pal-profile show` lists UUIDs. The bundle holds a summary with the GPU's serial number, its values against
    those of its peers (which are not named), all its records, error counters and throttling, and the settings
    under which it was measured. It names no user and no job.
    """
    config = settings.load()
    with open_database(config.state_dir) as database:
        name = gpu.among(measured(database)).uuid
        stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in f"evidence-{name}")
        path = output or (stem if as_directory else f"{stem}.tar.gz")
        (_check_new if as_directory else output_file.check_place)(path)
        files = _files(config, database, name)
    (_write_directory if as_directory else _write_archive)(path, stem, files)
    common.say(f"{path}: {', '.join(sorted(files))}")


def _files(config: Config, database: Database, uuid: str) -> dict[str, bytes]:
    from slurm_pal.report import evidence as report  # numpy is for this command alone

    own = database.records_of(uuid)
    beside = report.values_beside(own, database.by_time())
    now_s = time.time()
    texts = report.bundle(own, beside, _flags(config, uuid), now_s)
    files = {name: text.encode() for name, text in texts.items()}
    try:
        drawn = report.picture(own, beside, now_s)
    except MissingPackageError as error:
        common.say(f"pal: without history.svg: {one_line(error)}", err=True)
    else:
        files |= {"history.svg": drawn} if drawn else {}
    return files


def _flags(config: Config, uuid: str) -> tuple[str, ...]:
    """The published flags of a GPU; () where nothing is published."""
    try:
        published = snapshot.read(config.snapshot_path)
    except DataError:
        return ()
    return next((s.flags for s in map(published.gpu, range(len(published))) if s.uuid == uuid), ())


def _write_archive(path: str, stem: str, files: Mapping[str, bytes]) -> None:
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{stem}/{name}")  # no owner: no user's name goes to the vendor
            entry.size, entry.mode, entry.mtime = len(content), 0o644, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    output_file.write(path, raw.getvalue())


def _check_new(path: str) -> None:
    if os.path.lexists(path):
        raise UsageError(f"cannot write {path}: it exists already; remove it, or choose another place with -o")


def _write_directory(path: str, stem: str, files: Mapping[str, bytes]) -> None:
    parent = os.path.dirname(os.path.abspath(path))
    try:
        temporary = tempfile.mkdtemp(prefix=f".{stem}.", dir=parent)
        try:
            for name, content in files.items():
                write_atomic(os.path.join(temporary, name), content, 0o644)
            os.chmod(temporary, 0o755)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                shutil.rmtree(temporary)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another place with -o") from None
