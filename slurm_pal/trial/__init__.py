# SPDX-License-Identifier: MIT
"""One trace on a live Slurm, arm by arm, in compressed time; see docs/trial.md."""
