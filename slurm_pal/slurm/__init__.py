"""Everything that talks to Slurm, behind the `SlurmClient` protocol."""
