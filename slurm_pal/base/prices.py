# SPDX-License-Identifier: MIT
"""What an hour of a partition costs: constants of pal.toml, a live file over them, else Slurm's own billing weights.

Rates are in the form of TRESBillingWeights (slurm.conf(5)), like "CPU=0.02,Mem=0.005G,GRES/gpu=2.5": money for an hour
of one CPU, of one GiB, of one GPU. A plain number is the price of a GPU hour. Whatever the unit of money is, it must
be the same for all partitions. Read on the submit path: standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_pal.base.errors import DataError
from slurm_pal.base.light import NamedTuple

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable

    from slurm_pal.base.cluster import Partition
    from slurm_pal.base.config import Config
    from slurm_pal.base.files import Reader

GPU, CPU, MEMORY, NODE = "gres/gpu", "cpu", "mem", "node"
LIVE_S = 86400.0
"""A live price counts for so long; after that, the constant does."""
MOST = 1e9
GIB = {"k": 2.0**-20, "m": 2.0**-10, "g": 1.0, "t": 2.0**10, "p": 2.0**20}
"""Of memory: Slurm's unit in lower case -> GiB."""

Rates = Mapping[str, float]
"""TRES in lower case -> money for an hour of one; memory by GiB."""


class Usage(NamedTuple):
    """What a job holds while it runs."""

    gpus: int = 0
    cpus: int = 0
    memory_gib: float = 0.0
    nodes: int = 1
    gpu_type: str = ""


class LivePrice(NamedTuple):
    """One row of the live file."""

    price: float  # of a GPU hour
    at_s: float  # Unix s


class Prices(NamedTuple):
    """Of each partition, and what is to be reported about them."""

    rates: Mapping[str, Rates]
    old: tuple[str, ...] = ()  # partitions whose live price is too old to count
    trouble: str = ""  # why the live file is not used

    def per_hour(self, partition: str, usage: Usage) -> float | None:
        """Money for an hour of a job there, None where no price is known."""
        rates = self.rates.get(partition)
        return per_hour(rates, usage) if rates is not None else None

    @property
    def complaints(self) -> list[str]:
        """What users and admins are to know, one line each."""
        found = [f"{self.trouble}; those of [prices] count"] if self.trouble else []
        if self.old:
            found.append(f"older than a day, and not counted: the live prices of {', '.join(self.old)}")
        return found


def parse(value: object) -> Rates:
    """Rates of a number (of a GPU hour) or of a text. Raises ValueError, with the part that is wrong."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {GPU: _amount(str(value))}
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is neither a price of a GPU hour nor a text like 'CPU=0.02,GRES/gpu=2.5'")
    found: dict[str, float] = {}
    for part in value.split(","):
        name, sign, text = part.strip().partition("=")
        tres = name.lower()
        if not sign or not tres:
            raise ValueError(f"{part!r} is not like GRES/gpu=2.5")
        unit = text[-1:].lower()
        if tres == MEMORY:  # Slurm counts it in MiB where no unit is given
            scale = GIB[unit if unit in GIB else "m"]
            found[tres] = _amount(text[:-1] if unit in GIB else text) / scale
        else:
            found[tres] = _amount(text)
    return found


def _amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= MOST:
        raise ValueError(f"{text!r} is not a price from 0 to {MOST:g}")
    return number


def per_hour(rates: Rates, usage: Usage) -> float:
    """Money for an hour. A rate for GPUs of the job's type (GRES/gpu:a100) counts before that for any."""
    of_type = rates.get(f"{GPU}:{usage.gpu_type.lower()}") if usage.gpu_type else None
    gpu = of_type if of_type is not None else rates.get(GPU, 0.0)
    whole = usage.gpus * gpu + usage.cpus * rates.get(CPU, 0.0) + usage.memory_gib * rates.get(MEMORY, 0.0)
    return whole + usage.nodes * rates.get(NODE, 0.0)


def live(path: str, text: str) -> dict[str, LivePrice]:
    """Partition -> its newest row of `partition,price,unix_time`; a header and `#` lines are left out.

    Raises DataError, with the first line that is wrong.
    """
    found: dict[str, LivePrice] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = [word.strip() for word in line.split(",")]
        if not line.strip() or line.startswith("#") or (number == 1 and words[:2] == ["partition", "price"]):
            continue
        try:
            name, price, at_s = words
            row = LivePrice(_amount(price), float(at_s))
            if not (name and abs(row.at_s) < 1e12):
                raise ValueError
        except ValueError:
            raise DataError(f"{path}: line {number}: {line!r:.80} is not partition,price,unix_time") from None
        if name not in found or found[name].at_s <= row.at_s:
            found[name] = row
    return found


def current(
    config: Config, partitions: Iterable[Partition], now_s: float, reader: Reader | None = None
) -> Prices:  # fmt: skip
    """What hours cost now, by pal.toml and its live file; where that cannot be used, the constants count.

    `reader` reads the file in place of `read_trusted`.
    """
    billing = {partition.name: partition.billing for partition in partitions if partition.billing}
    path, rows, trouble = config.text("submit", "prices"), {}, ""
    if path:
        from slurm_pal.base.files import read_trusted

        try:
            rows = live(path, (reader or read_trusted)(path).decode("utf-8", "replace"))
        except (OSError, DataError) as error:
            trouble = f"the live prices cannot be read: {error}"
    return prices(config.prices, billing, rows, now_s)._replace(trouble=trouble)


def prices(
    stated: Mapping[str, Rates], billing: Mapping[str, str], rows: Mapping[str, LivePrice], now_s: float
) -> Prices:
    """Of each partition the live price, else the constant, else Slurm's billing weights (units of billing). Pure."""
    found: dict[str, Rates] = {}
    for name, text in billing.items():
        try:
            found[name] = parse(text)
        except ValueError:  # a weight of a kind that is not known here: no price rather than a wrong one
            continue
    if stated or rows:  # weights and money are not to be compared
        found = {}
    found |= stated
    old = []
    for name, row in rows.items():
        if now_s - row.at_s > LIVE_S:
            old.append(name)
        else:
            found[name] = {**found.get(name, {}), GPU: row.price}
    return Prices(found, tuple(sorted(old)))
