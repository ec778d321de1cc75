# SPDX-License-Identifier: MIT
"""The Lua files of the submit filter, as a site gets them. `python -m slurm_pal.filter.source` prints pal.lua.

job_submit.lua and cli_filter.lua are ready in etc/. pal.lua is put together from etc/filter/: each part becomes a
local variable of its name, made by a function of its own, so that no part sees inside another. A part may use the
variables of earlier parts, and `terms`, which Python writes.
"""

from __future__ import annotations

import sys
import textwrap
from importlib import resources

from slurm_pal.filter import terms

LOGIC = "pal.lua"
PARTS = (
    "pal", "texts", "hosts", "tables", "claims", "answers", "decisions", "steering", "goals", "requests", "scripts",
    "classes", "marks", "server", "client",
)  # fmt: skip
"""The parts in etc/filter/, each after those that it uses."""
_LICENCE = "-- SPDX-License-Identifier: MIT\n"
_HEAD = textwrap.fill(
    "slurm-pal: the logic of the submit filters, loaded by job_submit.lua (in slurmctld) and by cli_filter.lua (in "
    "sbatch, srun and salloc). For Lua 5.1 and later. Put together from slurm_pal/filter/terms.py and, of etc/filter, "
    f"{', '.join(PARTS)}: change those and not this file.",
    100, initial_indent="-- ", subsequent_indent="-- ",
)  # fmt: skip
_TAIL = "pal.submit, pal.client = server.submit, client.submit\nreturn pal\n"


def text_of(name: str) -> str:
    """The text of pal.lua, job_submit.lua or cli_filter.lua."""
    folder = resources.files("slurm_pal") / "etc"
    if name != LOGIC:
        return (folder / name).read_text("utf-8")
    chunks = [_chunk(part, (folder / "filter" / f"{part}.lua").read_text("utf-8")) for part in PARTS]
    return "\n".join([f"{_HEAD}\n{_LICENCE}", f"local terms = {terms.lua()}\n", *chunks, _TAIL])


def _chunk(part: str, text: str) -> str:
    rule = f"-- == {part}.lua ".ljust(92, "=")
    return f"{rule}\n\nlocal {part} = (function()\n{text.removeprefix(_LICENCE)}end)()\n"


if __name__ == "__main__":
    sys.stdout.write(text_of(LOGIC))
