# SPDX-License-Identifier: MIT
"""What `pal-profile bench --list` shows: the benchmarks, and the backends usable here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from slurm_pal.profiling.node.backends import BACKENDS
from slurm_pal.profiling.node.benchmarks import BENCHMARKS, DEFAULT, FALLBACKS

SCHEMA = "benchmarks"  # pal.benchmarks/1


def table(environ: Mapping[str, str]) -> dict[str, Any]:
    """Benchmarks and backends as plain data; `kind` is "score" or "health".

    A backend that is not available says why. Being available does not yet show which of the
    benchmarks a device here can run: only the device knows that.
    """
    reasons = {name: choice.available(environ) for name, choice in BACKENDS.items() if name != "auto"}
    usable = [name for name, reason in reasons.items() if not reason]
    return {
        "benchmarks": [
            {
                "id": row.id,
                "class": row.sensitivity_class,
                "kind": "health" if row.is_health else "score",
                "unit": row.unit,
                "dtype": row.dtype,
                "shape": row.shape,
                "seconds": row.seconds,
                "default": row.id in DEFAULT,
                "quick": row.id in DEFAULT and row.quick,
                "fallbacks": list(FALLBACKS.get(row.id, ())),
                "backends": usable,
            }
            for row in BENCHMARKS
        ],
        "backends": [
            {"name": name, "description": BACKENDS[name].description, "available": not reason, "reason": reason}
            for name, reason in reasons.items()
        ],
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    shown = [f"{'ID':16} {'CLASS':6} {'UNIT':8} {'DTYPE':6} {'SHAPE':21} SET"]
    for row in found["benchmarks"]:
        group = "default, quick" if row["quick"] else "default" if row["default"] else "-"
        kind = row["class"] or "health"
        shown.append(f"{row['id']:16} {kind:6} {row['unit']:8} {row['dtype']:6} {row['shape']:21} {group}")
    shown += ["", "BACKEND  HERE"]
    shown += [f"{row['name']:8} {row['reason'] or 'yes'} ({row['description']})" for row in found["backends"]]
    return shown


def show(as_json: bool) -> int:
    """Print the list; exit code 0."""
    found = table(os.environ)
    if as_json:
        print(json.dumps({"schema": f"pal.{SCHEMA}/1", **found}, indent=2))
    else:
        print("\n".join(lines(found)))
    return 0
