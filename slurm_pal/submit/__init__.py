# SPDX-License-Identifier: MIT
"""palsub: read a submission, decide, hand it to sbatch."""
