# SPDX-License-Identifier: MIT
"""Earlier names of options and commands: they still work, but no help shows them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import click


class Renamed(click.Option):
    """An option with earlier spellings: `click.option("--act/--dry-run", cls=Renamed, was=["--apply"])`."""

    def __init__(self, *args: Any, was: Sequence[str] = (), **attributes: Any) -> None:  # noqa: ANN401  # click's own
        super().__init__(*args, **attributes)
        self._was = list(was)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:  # noqa: ANN401  # click no longer names this type
        """Known only to the parser: help, completion and messages read `opts`."""
        shown = self.opts
        self.opts = [*shown, *self._was]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


def renamed(group: click.Group, command: click.Command, was: str) -> None:
    """Let a command of the group answer to an earlier name as well."""
    earlier = copy.copy(command)
    earlier.hidden = True
    group.add_command(earlier, was)
