# SPDX-License-Identifier: MIT
"""slurm-pal: make stock Slurm place jobs by what each GPU really delivers.

The package is imported on the submit path of every job, so this file stays
empty but for the version: import the room you need.
"""

__version__ = "0.2.0"
