# SPDX-License-Identifier: MIT
"""Mean and standard deviation over seeds of what `describe` says of our own traces (docs/traces.md).

python tests/bench/trace_statistics.py [--seeds 20] [NAME=VALUE ...]      for example arrivals=diurnal cap_s=86400
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_pal.simulate.inputs.describe import describe
from slurm_pal.simulate.inputs.generate import TraceSpec, generate


def flat(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Nested names joined by dots."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", float(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("changes", nargs="*", metavar="NAME=VALUE")
    options = parser.parse_args()
    changes = dict(word.split("=", 1) for word in options.changes)
    plain = TraceSpec()
    typed = {name: text if isinstance(getattr(plain, name), str) else float(text) for name, text in changes.items()}
    found: dict[str, list[float]] = defaultdict(list)
    for seed in range(options.seeds):
        spec = plain._replace(seed=seed, **typed)  # type: ignore[arg-type]
        figures = describe(generate(spec))
        figures["offered_load"] = figures["gpu_hours"] / (figures["span_h"] * spec.cluster_gpus)
        for name, value in flat(figures):
            found[name].append(value)
    for name, values in found.items():
        padded = [*values, *[0.0] * (options.seeds - len(values))]
        print(f"{name:27} {statistics.fmean(padded):10.3f} {statistics.stdev(padded):10.3f}")


if __name__ == "__main__":
    main()
