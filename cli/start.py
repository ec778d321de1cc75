# SPDX-License-Identifier: MIT
"""Entry points of `pal`, `pal-profile` and `pal-rebalance`: what must start fast is loaded without the rest.

Nothing that is loaded is garbage, so nobody looks for any until `common.run` has a command to run.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

MODULES = {
    "gpus": "inventory", "nodes": "inventory", "doctor": "doctor", "evidence": "evidence", "demo": "demo",
    "probe": "probe",
    "progress": "progress", "ack": "progress", "note": "note", "observe": "observe", "fork": "fork", "have": "have",
    "recipes": "recipes",
    "explain": "explain", "whatif": "whatif", "why-slow": "why_slow",
    "moves": "moves", "loans": "loans", "costs": "costs", "lab": "lab",
    "report": "report", "heatmap": "report", "simulate": "simulate.command", "trace": "trace", "trial": "trial",
    "throughputs": "throughputs", "ticks": "ticks", "compare": "compare", "top": "top", "publish-table": "publish",
    "admin": "admin", "setup": "setup",
}  # fmt: skip
"""Command of `pal` -> the module that it is loaded from, without the others."""


def rebalance() -> None:
    """Run `pal-rebalance`; the lease guard without what a tick needs."""
    if sys.argv[1:] == ["--guard"]:
        from slurm_pal.leases.guard import main as guard

        sys.exit(guard())
    gc.disable()
    from slurm_pal.cli.pal_rebalance import main as everything

    return everything()


def profile() -> None:
    """Run `pal-profile`; the self-test of a card also on a machine that has nothing for sweeps (docs/selftest.md)."""
    gc.disable()
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


def command(word: str) -> click.Command:
    """A command of `pal`."""
    import importlib

    import click

    module = importlib.import_module(f"slurm_pal.cli.{MODULES[word]}")
    return next(one for one in vars(module).values() if isinstance(one, click.Command) and one.name == word)


def main() -> None:
    """Run `pal`: a command without what the others need, and all of them for help, a typo or an earlier name."""
    gc.disable()
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word in MODULES:
        import click

        from slurm_pal.cli import common

        return common.run(click.Group("pal", {word: command(word)}), "pal")
    from slurm_pal.cli.pal import main as everything

    return everything()
