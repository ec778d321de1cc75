# SPDX-License-Identifier: MIT
"""Everything that talks to Slurm, behind the `SlurmClient` protocol."""
