"""palsub: read a submission, decide, hand it to sbatch."""
