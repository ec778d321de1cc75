# SPDX-License-Identifier: MIT
"""pal admin dashboard: the Grafana dashboard of our metrics."""

from __future__ import annotations

from importlib import resources

import click

from slurm_pal.cli import common, output_file

FILE = "grafana/slurm-pal.json"
"""Below etc/."""


@click.command()
@click.option("--output", metavar="FILE", help="Write it there instead of to standard output.")
@common.verbose_option
def dashboard(output: str | None) -> None:
    """Print the dashboard for Grafana (Dashboards, New, Import) of the metrics that ticks write.

    It asks a Prometheus that reads them from the node exporter: rebalance.metrics in pal.toml names the file
    (docs/rebalance.md).

    \b
    Examples:
      pal admin dashboard --output slurm-pal.json
      pal admin dashboard | jq '.panels[].title'
    """
    text = (resources.files("slurm_pal") / "etc" / FILE).read_text(encoding="utf-8")
    if output is None:
        click.echo(text, nl=False)
        return
    output_file.say_written(output, output_file.write(output, text))
