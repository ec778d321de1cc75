# SPDX-License-Identifier: MIT
"""Traces from the command line: reader options, and a generator's settings as text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.simulate.inputs.generate import SIZES, TraceSpec, generate
from slurm_pal.simulate.inputs.reader_options import ReaderOptions, load_apps, parse_patterns
from slurm_pal.simulate.trace import Trace


class GeneratorOption(NamedTuple):
    """One word of `--generate`: the field of TraceSpec, and how its value is read."""

    field: str
    read: Callable[[str], Any]
    summary: str


def _hours(text: str) -> float:
    return 3600 * float(text)


KEYS = {
    "jobs": GeneratorOption("jobs", int, "number of jobs"),
    "seed": GeneratorOption("seed", int, "another seed is another trace"),
    "load": GeneratorOption("load", float, "GPU-hours submitted per GPU-hour of the cluster"),
    "rate": GeneratorOption("rate_per_h", float, "submissions per hour, instead of load"),
    "gpus": GeneratorOption("cluster_gpus", int, "GPUs that the load is to fill; default: the cluster's"),
    "arrivals": GeneratorOption("arrivals", str, "poisson, or diurnal"),
    "cap_h": GeneratorOption("cap_s", _hours, "longer jobs run this long, hours"),
    "users": GeneratorOption("users", int, "number of users"),
    "accounts": GeneratorOption("accounts", int, "number of accounts"),
    "zipf": GeneratorOption("zipf", float, "how unequal users are"),
}


def generated(text: str, n_gpus: int, further: int = 0) -> Trace:
    """The trace of `--generate`: KEY=VALUE joined by commas, all optional, for a cluster of `n_gpus`.

    `further` is added to its seed: another trace of the same kind.

    Sizes that the cluster cannot hold are not drawn; the others keep their proportions.
    Raises UsageError.
    """
    values: dict[str, Any] = {"cluster_gpus": n_gpus}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, _, value = word.partition("=")
        key = KEYS.get(name.strip())
        try:
            if key is None:
                raise ValueError
            values[key.field] = key.read(value)
        except ValueError:
            raise UsageError(f"{word!r} must be KEY=VALUE with a KEY of {', '.join(KEYS)}, like load=0.8") from None
    if any(isinstance(value, float) and math.isnan(value) for value in values.values()):
        raise UsageError(f"{text!r} has a value that is not a number")
    fitting = {size: share for size, share in SIZES.items() if size <= max(1, values["cluster_gpus"])}
    spec = TraceSpec(**values, sizes=fitting)
    return generate(spec._replace(seed=spec.seed + further))


def with_throughputs(reading: ReaderOptions, path: str | None) -> ReaderOptions:
    """`reading` with the throughput table at `path`, of either kind, for formats that count steps. Raises DataError."""
    if path is None:
        return reading
    from slurm_pal.simulate.known_throughputs import as_gavels, read_known

    return reading._replace(throughputs=as_gavels(read_known(path, time.time())))


def options_of(options: Mapping[str, Any]) -> ReaderOptions:
    """What the readers need to know; [apps] of pal.toml applies to sacct. Raises UsageError, ConfigError."""
    from slurm_pal.base import config

    return ReaderOptions(
        apps=load_apps(options["app_table"]) if options["app_table"] else {},
        site_apps=config.load().apps,
        patterns=parse_patterns(options["app_patterns"]),
        processors_per_gpu=options["processors_per_gpu"],
    )
