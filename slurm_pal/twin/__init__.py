# SPDX-License-Identifier: MIT
"""The twin: tick, palsub and submit filter as they are, over a virtual Slurm with a clock of its own."""
