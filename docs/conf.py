# SPDX-License-Identifier: MIT
"""Sphinx configuration: HTML and man pages from the same sources."""

from slurm_pal import __version__

project = "slurm-pal"
author = "The slurm-pal developers"
copyright = "2026, " + author
release = version = __version__
extensions = ["myst_parser", "sphinx_click"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
smartquotes = False  # "--act" is an option, not a dash
man_pages = [
    ("palsub", "palsub", "submit a batch job to Slurm, placed by GPU variability", author, 1),
    ("man/pal", "pal", "look at GPU variability and at what was done for a job", author, 1),
    ("man/pal-profile", "pal-profile", "measure the GPUs of a Slurm cluster", author, 1),
    ("man/pal-rebalance", "pal-rebalance", "retarget pending jobs and move running ones", author, 1),
    ("man/pal-trial", "pal-trial", "run a trace on a live Slurm, arm by arm", author, 1),
    ("settings", "pal.toml", "settings of slurm-pal", author, 5),
]
