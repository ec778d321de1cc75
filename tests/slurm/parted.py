# SPDX-License-Identifier: MIT
"""A lab with partitions of its own, and a site whose tick shares them out."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slurm_pal.lab.lab import Lab

from . import queue_of
from .conftest import short_directory, skip_without_slurm
from .test_rebalance import Site


@contextlib.contextmanager
def lab_of(partitions: Mapping[str, str]) -> Iterator[Lab]:
    """2 nodes with 2 GPUs each; `partitions`: name -> further words of `scontrol create`."""
    skip_without_slurm()
    with short_directory() as path, Lab.up(path, nodes=2, gpus=2, seed=1) as lab:
        for name, words in partitions.items():
            argv = ["scontrol", "create", f"PartitionName={name}", *words.split(), "State=UP"]
            subprocess.run(argv, env=lab.environ(), check=True)
        yield lab


@contextlib.contextmanager
def site_of(lab: Lab, home: Path, monkeypatch: pytest.MonkeyPatch, throughputs: str) -> Iterator[Site]:
    """A site with this table of throughputs; its queue is empty afterwards."""
    for name, value in lab.variables().items():
        monkeypatch.setenv(name, value)
    made = Site(lab, home)
    table = home / "throughputs.csv"
    table.write_text(throughputs)
    made.env |= {"SLURM_PAL_REBALANCE_ALLOCATION": "gavel:max-sum", "SLURM_PAL_REBALANCE_THROUGHPUTS": str(table)}
    yield made
    queue_of.emptied(made.client)
