# SPDX-License-Identifier: MIT
"""Entry points of `pal`, `pal-profile` and `pal-rebalance`: what must start fast is loaded without the rest."""

from __future__ import annotations

import sys

IN_JOBS = ("progress", "ack", "observe")


def rebalance() -> None:
    """Run `pal-rebalance`; the lease guard without what a tick needs."""
    if sys.argv[1:] == ["--guard"]:
        from slurm_pal.leases.guard import main as guard

        sys.exit(guard())
    from slurm_pal.cli.pal_rebalance import main as everything

    return everything()


def profile() -> None:
    """Run `pal-profile`; the self-test of a card also on a machine that has nothing for sweeps (docs/selftest.md)."""
    try:
        if sys.argv[1:2] == ["selftest"]:
            import click

            from slurm_pal.cli import common
            from slurm_pal.cli.selftest import selftest

            return common.run(click.Group("pal-profile", {"selftest": selftest}), "pal-profile")
        from slurm_pal.cli.pal_profile import main as everything
    except KeyboardInterrupt:  # while all this was loaded
        print("pal-profile: interrupted", file=sys.stderr)
        sys.exit(130)
    return everything()


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
