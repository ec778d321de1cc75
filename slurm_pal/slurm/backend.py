# SPDX-License-Identifier: MIT
"""Which backend asks Slurm, by the setting slurm.backend."""

from __future__ import annotations

from slurm_pal.base.config import Config
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import SlurmClient


def connect(config: Config, timeout_s: float = 30.0) -> SlurmClient:
    """The client that the site has chosen. Slurm is not asked yet, so nothing can fail here."""
    if config.text("slurm", "backend") == "pyslurm":
        from slurm_pal.slurm.pyslurm_client import PyslurmClient

        return PyslurmClient(timeout_s=timeout_s)
    return CliClient(timeout_s=timeout_s)
