# SPDX-License-Identifier: MIT
"""The site's table of data, [data] in pal.toml: path prefix -> nodes where it is local, and how fast others get it.

    [data]
    "/data/imagenet" = "nodes=n[0-3],n7 gib_per_s=2"
    "/nvme" = "feature=nvme"

Read on the submit path: standard library only.
"""

from __future__ import annotations

from slurm_pal.base.light import NamedTuple

USUAL_GIB_PER_S = 1.0
MOST_GIB_PER_S = 1e6


class DataPlace(NamedTuple):
    """Where one prefix is local."""

    nodes: str = ""  # host list
    feature: str = ""  # or the nodes with this feature
    gib_per_s: float = USUAL_GIB_PER_S  # at which a node without it gets it


def parse(prefix: str, value: object) -> DataPlace:
    """One row. Raises ValueError, with the part that is wrong."""
    if not prefix.startswith("/"):
        raise ValueError(f"{prefix!r} is no absolute path")
    found = DataPlace()
    for part in value.split() if isinstance(value, str) else [repr(value)]:
        name, sign, text = part.partition("=")
        if not sign or not text or name not in DataPlace._fields:
            raise ValueError(f"{part!r} is not nodes=LIST, feature=NAME or gib_per_s=NUMBER")
        if name == "gib_per_s":
            try:
                rate = float(text)
            except ValueError:
                rate = 0.0
            if not 0.0 < rate <= MOST_GIB_PER_S:
                raise ValueError(f"{part!r} must be a number above 0 and at most {MOST_GIB_PER_S:g}")
            found = found._replace(gib_per_s=rate)
        else:
            found = found._replace(nodes=text) if name == "nodes" else found._replace(feature=text)
    if bool(found.nodes) == bool(found.feature):
        raise ValueError(f"{value!r} needs either nodes= or feature=")
    return found
