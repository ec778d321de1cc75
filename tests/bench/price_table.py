# SPDX-License-Identifier: MIT
"""The published table of a dynamic choice by price, from the published logs (Narayanan et al., DISPA 2020).

    python tests/bench/price_table.py --logs CHECKOUT/logs --throughputs ../shared/data/gavel/throughputs_null.csv

CHECKOUT is a copy of stanford-futuredata/training_on_a_dime; its logs are not part of this project. Reads the AWS logs
of one region and the Azure logs, writes them as one log of `pal simulate --prices`, and prints the cost reductions of
A3C and ResNet-50 for jobs of four days beside the published ones. A second line has the published program's quirk: the
price of an Azure instance with several GPUs is not divided by their number when instances are compared.
"""

from __future__ import annotations

import argparse
import calendar
import csv
import json
import os
import tempfile
import time
from collections.abc import Iterator
from statistics import fmean

from slurm_pal.research.price_replay import (
    DAILY,
    FIXED,
    MARKETS,
    SEVERAL,
    TYPE,
    Instance,
    Replay,
    ReplayTerms,
    read_log,
)
from slurm_pal.simulate.known_throughputs import read_known

AWS = {
    "p3.2xlarge": ("v100", 1), "p2.xlarge": ("k80", 1), "p2.8xlarge": ("k80", 8), "p2.16xlarge": ("k80", 16),
    "p3.8xlarge": ("v100", 4), "p3.16xlarge": ("v100", 8),
}  # fmt: skip
PUBLISHED = {"A3C": (1.32, 1.71, 3.10, 3.53), "ResNet-50 (batch size 128)": (1.00, 1.08, 1.49, 1.53)}
STEPS, DAY_S = (TYPE, SEVERAL, MARKETS, DAILY), 86400.0
STARTS = (-35, -5)
"""Of the days with a price of a p3.2xlarge: jobs start on each of these."""

Row = tuple[str, str, int, float, float]


def aws(folder: str) -> Iterator[Row]:
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as stream:
            for row in json.load(stream)["SpotPriceHistory"]:
                at_s = calendar.timegm(time.strptime(row["Timestamp"][:19], "%Y-%m-%dT%H:%M:%S"))
                kind, gpus = AWS[row["InstanceType"]]
                day_s = at_s // 86400 * DAY_S  # the published program knows days only
                yield f"aws/{row['AvailabilityZone']}", kind, gpus, float(row["SpotPrice"]), day_s


def azure(folder: str) -> Iterator[Row]:
    with open(os.path.join(folder, "instance_mapping.csv")) as stream:
        kinds = {row["Instance"]: (row["GPU type"].lower(), int(row["# GPUs"])) for row in csv.DictReader(stream)}
    # Where two instances have the same GPUs, the later one counts, as in the published program.
    names = {kind: name for name, kind in kinds.items()}
    for name in sorted(os.listdir(os.path.join(folder, "cost"))):
        with open(os.path.join(folder, "cost", name)) as stream:
            for row in csv.DictReader(stream):
                at_s = calendar.timegm(time.strptime(row["Date"], "%m/%d/%Y"))
                for (kind, gpus), instance in names.items():
                    if row[instance]:
                        yield f"azure/{name.removesuffix('.csv')}", kind, gpus, float(row[instance].strip("$")), at_s


class Quirk(Replay):
    """The published comparison of instances."""

    def _value(self, instance: Instance, at_s: float) -> float:
        found = super()._value(instance, at_s)
        return found * instance.gpus if instance.group == "azure" else found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--logs", required=True)
    parser.add_argument("--throughputs", required=True)
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument(
        "--speed", default="", help="APPLICATION:TYPE=X,...: relative to a V100, instead of the table's"
    )
    parser.add_argument("--days", type=float, default=4.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/log.csv"
        rows = [*aws(f"{options.logs}/aws/cost/{options.region}"), *azure(f"{options.logs}/azure")]
        cheapest: dict[tuple[str, str, int, float], float] = {}
        for *key, price, at_s in rows:
            place = (*key, at_s)
            cheapest[place] = min(price, cheapest.get(place, price))
        with open(path, "w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(("market", "type", "gpus", "price", "unix_time"))
            writer.writerows(
                (market, kind, gpus, price, at_s) for (market, kind, gpus, at_s), price in cheapest.items()
            )
        log = read_log(path)
    days = sorted(
        {at_s for market, kind, gpus, _, at_s in rows if market.startswith("aws") and (kind, gpus) == ("v100", 1)}
    )
    known = read_known(options.throughputs, time.time())
    print(f"{'':28} {'':9} " + " ".join(f"{step:>10}" for step in STEPS))
    for name, published in PUBLISHED.items():
        speed = {key.type: one.steps_per_s for key, one in known.items() if (key.application, key.gpus) == (name, 1)}
        for word in filter(None, options.speed.split(",")):
            (app, _, kind), _, ratio = word.partition("=")[0].rpartition(":"), "", word.partition("=")[2]
            speed |= {kind: speed["v100"] * float(ratio)} if app == name.split(" ")[0] else {}
        terms = ReplayTerms(options.days, "v100", 0.0, 0.0)
        print(f"{name:28} {'published':9} " + " ".join(f"{value:10.2f}" for value in published))
        for label, kind in (("here", Replay), ("quirk", Quirk)):
            replay = kind(log, speed, terms)
            mean = {
                step: fmean(replay.cost(step, at_s).money for at_s in days[slice(*STARTS)]) for step in (FIXED, *STEPS)
            }
            print(f"{'':28} {label:9} " + " ".join(f"{mean[FIXED] / mean[step]:10.2f}" for step in STEPS))


if __name__ == "__main__":
    main()
