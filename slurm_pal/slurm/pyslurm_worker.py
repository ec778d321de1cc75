# SPDX-License-Identifier: MIT
"""The child process of the pyslurm backend: print nodes or jobs as JSON and exit.

libslurm ends its process when slurm.conf is missing, so pyslurm never enters ours.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

NODE_FIELDS = (
    "name", "state", "configured_gres", "allocated_gres", "effective_cpus", "total_cpus", "allocated_cpus",
    "real_memory",
    "allocated_memory", "active_features", "partitions", "weight",
)  # fmt: skip
JOB_FIELDS = (
    "id", "name", "state", "state_reason", "user_name", "partition", "allocated_nodes", "required_nodes",
    "excluded_nodes", "submit_time", "start_time", "end_time", "time_limit", "requeue_count", "comment", "array_id",
    "gres_per_node",
)  # fmt: skip


def table_of(pyslurm: Any, what: str) -> list[dict[str, Any]]:  # noqa: ANN401 - the module has no types
    """All nodes or jobs as plain dicts; a field that this pyslurm lacks is None."""
    if what == "nodes":
        return [{f: getattr(node, f, None) for f in NODE_FIELDS} for node in pyslurm.Nodes.load().values()]
    rows = []
    for job in pyslurm.Jobs.load().values():
        row = {f: getattr(job, f, None) for f in JOB_FIELDS}
        rows.append(row | {"layout": job.get_resource_layout_per_node()})
    return rows


def main(what: str) -> int:
    """Print the table; exit code 3 when pyslurm is not installed, 1 when it fails."""
    os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
    try:
        import pyslurm
    except ImportError as error:
        print(f"pyslurm is not installed ({error}): pip install 'slurm-pal[pyslurm]'", file=sys.stderr)
        return 3
    try:
        if hasattr(pyslurm, "slurmctld") or hasattr(pyslurm, "init"):
            getattr(pyslurm, "init", lambda: None)()
        json.dump(table_of(pyslurm, what), sys.stdout, default=str)
    except Exception as error:  # whatever libslurm's wrapper raises is shown as one line
        print(f"pyslurm failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
