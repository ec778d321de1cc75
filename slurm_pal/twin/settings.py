# SPDX-License-Identifier: MIT
"""The twin's settings: the site's pal.toml, with what the command line of pal simulate says instead."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from slurm_pal.base.config import Config

FROM_OPTIONS = {
    "tick": ("rebalance", "interval_s"), "locality_penalty": ("placement", "locality_penalty"),
    "bar": ("placement", "barred_slowdown"), "margin": ("rebalance", "margin"),
}  # fmt: skip
"""Option -> the setting that it stands for."""


def with_options(config: Config, options: Mapping[str, object]) -> Config:
    """A copy with the options that were given. Raises ConfigError for a value that pal.toml may not have either."""
    made = copy.deepcopy(config)
    for name, (section, key) in FROM_OPTIONS.items():
        if options.get(name) is not None:
            made.set(section, key, options[name], f"--{name.replace('_', '-')}")
    return made
