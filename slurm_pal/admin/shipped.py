# SPDX-License-Identifier: MIT
"""The Lua files that slurm-pal ships, and the parts of an installation."""

from __future__ import annotations

from typing import NamedTuple

from slurm_pal.filter.source import LOGIC, text_of

FOLDER = "slurm-pal"
"""The folder beside slurm.conf for our files if the site has its own filter."""
SPANK_FILE = "pal_spank.so"
PLUGSTACK = "plugstack.conf"


class Filter(NamedTuple):
    """One of the two filters: a key of slurm.conf whose list must hold `lua`."""

    part: str
    key: str
    file: str  # which Slurm looks for beside slurm.conf
    plugin: str  # Slurm's own plug-in that runs it
    why: str
    link: str  # the table that it reads


SERVER = Filter(
    "server", "JobSubmitPlugins", "job_submit.lua", "job_submit_lua.so", "slurmctld asks us at each submission",
    "pal_table.lua",
)  # fmt: skip
CLIENT = Filter(
    "client", "CliFilterPlugins", "cli_filter.lua", "cli_filter_lua.so", "sbatch, srun and salloc ask us",
    "pal_table.public.lua",
)  # fmt: skip
FILTERS = (SERVER, CLIENT)
SPANK = "spank"


def lua_files() -> dict[str, str]:
    """Name -> text of the Lua files of this version."""
    return {name: text_of(name) for name in (LOGIC, *(f.file for f in FILTERS))}
