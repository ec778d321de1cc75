# SPDX-License-Identifier: MIT
"""Which backend asks Slurm, by the setting slurm.backend."""

from __future__ import annotations

from slurm_pal.base.config import Config
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import SlurmClient


def connect(config: Config, timeout_s: float = 30.0, sweeps: bool = False) -> SlurmClient:
    """The client that the site has chosen, with `sweeps` for a command that submits jobs which measure nodes.

    Slurm is not asked yet, but for a sweep through slurmrestd. Raises ConfigError for an address or a token that
    cannot be one, NotByRestError where slurmrestd cannot be given such jobs, SlurmError where it does not answer then.
    """
    backend = config.text("slurm", "backend")
    if backend == "pyslurm":
        from slurm_pal.slurm.pyslurm_client import PyslurmClient

        return PyslurmClient(timeout_s=timeout_s)
    if backend == "rest":
        from slurm_pal.slurm import rest_wire
        from slurm_pal.slurm.rest_client import RestClient

        where = rest_wire.address(config.text("slurm", "rest"))
        client = RestClient(rest_wire.Wire(where, rest_wire.token(config.text("slurm", "rest_token")), timeout_s))
        if sweeps:
            client.check_sweeps()
        return client
    return CliClient(timeout_s=timeout_s)
