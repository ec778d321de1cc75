"""Entry point of the program `pal`: what jobs call while they run is loaded without all the rest."""

from __future__ import annotations

import sys

IN_JOBS = ("progress", "ack", "observe")


def main() -> None:
    """Run `pal`."""
    if sys.argv[1:2] and sys.argv[1] in IN_JOBS:
        import click

        from slurm_pal.cli import common
        from slurm_pal.cli.observe import observe
        from slurm_pal.cli.progress import ack, progress

        return common.run(click.Group("pal", {"progress": progress, "ack": ack, "observe": observe}), "pal")
    from slurm_pal.cli.pal import main as everything

    return everything()
