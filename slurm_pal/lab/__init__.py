# SPDX-License-Identifier: MIT
"""A private, real Slurm on this machine with emulated GPUs."""
