# SPDX-License-Identifier: MIT
"""Which backend asks Slurm, by the setting slurm.backend."""

from __future__ import annotations

from slurm_pal.base.config import Config
from slurm_pal.base.errors import NotByRestError
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import SlurmClient


def connect(config: Config, timeout_s: float = 30.0, changes: bool = False) -> SlurmClient:
    """The client that the site has chosen, for a command that submits or cancels jobs with `changes`.

    Slurm is not asked yet. Raises ConfigError for an address or a token that cannot be one, NotByRestError where
    the backend only reads.
    """
    backend = config.text("slurm", "backend")
    if backend == "pyslurm":
        from slurm_pal.slurm.pyslurm_client import PyslurmClient

        return PyslurmClient(timeout_s=timeout_s)
    if backend == "rest":
        if changes:
            raise NotByRestError(
                'slurm.backend = "rest" only reads, and this command submits jobs: use "cli" where Slurm\'s commands '
                "are (SLURM_PAL_SLURM_BACKEND=cli)"
            )
        from slurm_pal.slurm import rest_wire
        from slurm_pal.slurm.rest_client import RestClient

        where = rest_wire.address(config.text("slurm", "rest"))
        return RestClient(rest_wire.Wire(where, rest_wire.token(config.text("slurm", "rest_token")), timeout_s))
    return CliClient(timeout_s=timeout_s)
