# SPDX-License-Identifier: MIT
"""What slurm-pal knows as pandas DataFrames, for notebooks: `from slurm_pal import frames`, then `frames.gpus()`.

Nothing is changed or written, and pandas is imported when the first frame is made. docs/frames.md has all columns.
"""

from __future__ import annotations

from slurm_pal.frames.measured import records, sweeps
from slurm_pal.frames.missing import MissingWarning
from slurm_pal.frames.moved import moves
from slurm_pal.frames.replays import replay
from slurm_pal.frames.site import gpus
from slurm_pal.frames.submitted import jobs

__all__ = ["MissingWarning", "gpus", "jobs", "moves", "records", "replay", "sweeps"]
