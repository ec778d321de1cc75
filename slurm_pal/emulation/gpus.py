# SPDX-License-Identifier: MIT
"""Emulated GPUs: the hidden truth of a lab, which only measurement should reveal.

Each (node, index) slot of a lab holds one GPU with a UUID, a model and a true
slowdown per sensitivity class (1.0 = population median, larger is slower). Unless
read from a CSV, they are drawn by seed, each GPU from its own hash of (seed, node,
index), so a GPU keeps its values when the lab grows. The population resembles the
published one (SC22: about 2 % between GPUs for compute-bound work, far less for
memory-bound, a few outliers):

* A: lognormal, median 1.0, SD 2 %; outliers: 5 % of the GPUs (rounded, and at least
  one among 8 or more), the first in the order of a second hash, are instead uniform
  in 1.1 .. 1.5;
* B: 1 + 0.35 (A - 1) + N(0, 0.5 %): mixed work feels a third of it (all of it on some models);
* C: 1 + 0.01 (A - 1) + N(0, 0.05 %): for memory-bound work outliers hardly matter.

The emulated device simulates faults (`FLAGS`, and with a factor `FACTORS`). Those in
`SLOWING` make the GPU slower for jobs and measurements alike, class A in full, B and C by
the shares above. Imported by bench workers and job payloads: standard library only.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from statistics import NormalDist
from typing import NamedTuple

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.files import locked, read_trusted, write_atomic
from slurm_pal.emulation.models import DEFAULT_MODEL, emulated_model

SCHEMA = "pal.emu/1"
FILE_NAME = "emu_gpus.json"  # beside slurm.conf
CLASSES = ("A", "B", "C")
FLAGS = {
    "hang": "its first compute-bound kernel never ends",
    "foreign_process": "somebody else's process is on it",
    "ecc": "uncorrectable memory errors while it runs",
    "missing": "the driver does not list it",
    "error": "falls off the bus (Xid 79)",
    "noisy": "thirty times the usual noise",
    "mig": "is in MIG mode",
}
SLOWING = {
    "drift": "slower from now on, with no sign of why",
    "throttle": "slower, held back by its board (HwSlowdown)",
    "thermal": "slower, held back by heat (SwThermal), below its power cap",
    "power_brake": "slower, held back by its power supply (PowerBrake)",
}
FACTORS = SLOWING | {
    "ageing": "every measurement makes its drift worse by this factor",
    "transient": "slower in its first measurement only",
    "pcie": "its PCIe link has this many times fewer lanes",
    "host": "its whole node is busy: launches and class B slower by this factor",
}
LOCALITY_PENALTY = 1.7  # PAL, SC'24: across nodes, where a lab has nothing else
_SPREAD_A = 0.02
_SPREAD = {"B": 0.005, "C": 0.0005}
_OUTLIER_SHARE = 0.05
_OUTLIER_LOW, _OUTLIER_HIGH = 1.1, 1.5
_NAME = re.compile(r"[^\W_][\w .,()+/-]{0,63}")
_UUID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ALLOWED = (0.1, 100.0)  # a slowdown outside this range is a typing error


class EmuGpu(NamedTuple):
    """One emulated GPU in its slot."""

    node: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used here
    uuid: str
    model: str
    slowdown: dict[str, float]  # per sensitivity class, 1.0 = median; without faults
    faults: dict[str, float | bool]  # of FLAGS -> True, of FACTORS -> factor

    def factor(self, name: str) -> float:
        """The factor of a fault, 1.0 without the fault."""
        return float(self.faults.get(name, 1.0))

    def true_slowdown(self, sensitivity: str) -> float:
        """What work of this class really feels here now: the slowdown with the faults in `SLOWING`."""
        slower = math.prod(self.factor(name) for name in SLOWING)
        return self.slowdown[sensitivity] * (1.0 + emulated_model(self.model).feels[sensitivity] * (slower - 1.0))


class EmuSwitch(NamedTuple):
    """Nodes that reach each other through one switch of the emulated network."""

    factor: float  # by which what is between them takes longer than within a node
    nodes: tuple[str, ...]


class Registry:
    """All emulated GPUs of a lab, in the order node, index, and the network between its nodes."""

    def __init__(self, gpus: Iterable[EmuGpu], seed: int = 0, network: Iterable[EmuSwitch] = ()) -> None:
        self.seed = seed
        self.network = tuple(network)
        self._slots: dict[tuple[str, int], EmuGpu] = {(gpu.node, gpu.index): gpu for gpu in gpus}

    @property
    def gpus(self) -> tuple[EmuGpu, ...]:
        return tuple(self._slots.values())

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node for node, _ in self._slots))

    def on_node(self, node: str) -> tuple[EmuGpu, ...]:
        """The GPUs of one node, () if the lab has no such node."""
        return tuple(gpu for gpu in self._slots.values() if gpu.node == node)

    def gpu(self, node: str, index: int) -> EmuGpu:
        """The GPU in one slot. Raises UsageError if there is none."""
        found = self._slots.get((node, index))
        if found is None:
            have = [i for n, i in self._slots if n == node]
            if have:
                hint = f"{node} has indexes {min(have)}-{max(have)}"
            else:
                hint = f"its nodes are {' to '.join(self.nodes[:: max(1, len(self.nodes) - 1)]) or 'none'}"
            raise UsageError(f"the lab has no GPU {node}:{index}; {hint}")
        return found

    def across(self, nodes: Collection[str]) -> float:
        """By which factor work between these nodes takes longer than within one: that of the nearest common switch."""
        apart = set(nodes)
        if len(apart) < 2:
            return 1.0
        common = (switch.factor for switch in self.network if apart.issubset(switch.nodes))
        return min(common, default=max((switch.factor for switch in self.network), default=LOCALITY_PENALTY))

    def put(self, gpu: EmuGpu) -> None:
        self._slots[gpu.node, gpu.index] = gpu


def draw_registry(nodes: Iterable[str], gpus_per_node: int, seed: int, model: str = DEFAULT_MODEL) -> Registry:
    """Draw a lab's GPUs from the distribution described above; a pure function of its arguments.

    Raises UsageError for a model name that cannot be shown.
    """
    if not _NAME.fullmatch(model):
        raise UsageError(f"--model {model!r} must be a name of 1 to 64 printable characters, like {DEFAULT_MODEL!r}")
    slots = [(node, index) for node in nodes for index in range(gpus_per_node)]
    wanted = round(_OUTLIER_SHARE * len(slots))
    wanted = max(wanted, 1) if len(slots) >= 8 else wanted
    outliers = set(sorted(slots, key=lambda slot: _uniform(seed, slot, "outlier"))[:wanted])
    return Registry((_draw(seed, slot, slot in outliers, model) for slot in slots), seed)


def _draw(seed: int, slot: tuple[str, int], outlier: bool, model: str) -> EmuGpu:
    if outlier:
        compute = _OUTLIER_LOW + (_OUTLIER_HIGH - _OUTLIER_LOW) * _uniform(seed, slot, "outlier size")
    else:
        compute = math.exp(_SPREAD_A * _normal(seed, slot, "A"))
    slowdown = {"A": round(compute, 6)}
    for name, spread in _SPREAD.items():
        share = emulated_model(model).feels[name]
        slowdown[name] = round(1.0 + share * (compute - 1.0) + spread * _normal(seed, slot, name), 6)
    return EmuGpu(*slot, uuid=gpu_uuid(seed, *slot), model=model, slowdown=slowdown, faults={})


def _digest(seed: int, slot: tuple[str, int], purpose: str) -> bytes:
    return blake2b(f"{seed}/{slot[0]}/{slot[1]}/{purpose}".encode(), digest_size=16).digest()


def _uniform(seed: int, slot: tuple[str, int], purpose: str) -> float:
    """A number in (0, 1), both ends excluded: 52 bits, so that adding a half stays exact."""
    return ((int.from_bytes(_digest(seed, slot, purpose)[:8], "big") >> 12) + 0.5) / 2.0**52


def _normal(seed: int, slot: tuple[str, int], purpose: str) -> float:
    return NormalDist().inv_cdf(_uniform(seed, slot, purpose))


def gpu_uuid(seed: int, node: str, index: int) -> str:
    """A UUID in NVML's form, GPU-8-4-4-4-12."""
    text = _digest(seed, (node, index), "uuid").hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


# -- the file ---------------------------------------------------------------------


def write_registry(path: str, registry: Registry) -> None:
    """Replace the registry file. Raises OSError."""
    rows = [gpu._asdict() for gpu in registry.gpus]
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    network = json.dumps([switch._asdict() for switch in registry.network])
    head = f'"schema": "{SCHEMA}", "seed": {registry.seed}, "network": {network}'
    write_atomic(path, f'{{{head}, "gpus": [\n{body}\n]}}\n')


def load_registry(path: str) -> Registry:
    """Read a registry file. Raises DataError, which says what is wrong with it."""
    try:
        table = json.loads(read_trusted(path))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; is this a lab? (pal lab status)") from None
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}): bring the lab up again") from None
    schema = table.get("schema") if isinstance(table, dict) else None
    if schema != SCHEMA:
        raise DataError(f"{path}: schema {schema!r}, this version reads {SCHEMA!r}")
    try:
        network = [EmuSwitch(_factor(row["factor"]), tuple(map(str, row["nodes"]))) for row in table.get("network", ())]
        registry = Registry((_from_row(row) for row in table["gpus"]), int(table.get("seed", 0)), network)
        if len(registry.gpus) != len(table["gpus"]):
            raise ValueError("the same slot twice")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: a GPU record cannot be read ({error!r}): bring the lab up again") from None
    return registry


def _from_row(row: Mapping[str, object]) -> EmuGpu:
    slowdown, faults = row["slowdown"], row.get("faults", {})
    if not isinstance(slowdown, dict) or not isinstance(faults, dict):
        raise TypeError("slowdown and faults must be objects")
    return EmuGpu(
        node=str(row["node"]),
        index=int(str(row["index"])),
        uuid=str(row["uuid"]),
        model=str(row["model"]),
        slowdown={name: _factor(slowdown[name]) for name in CLASSES},
        faults={name: check_fault(name, value) for name, value in faults.items()},
    )


def _factor(value: object) -> float:
    number = float(str(value))
    if not _ALLOWED[0] <= number <= _ALLOWED[1]:
        raise ValueError(f"factor {value!r} is not in {_ALLOWED[0]:g}..{_ALLOWED[1]:g}")
    return number


def find_registry(environ: Mapping[str, str]) -> str | None:
    """The registry beside the slurm.conf of `environ`, or None outside a lab."""
    conf = environ.get("SLURM_CONF")
    path = os.path.join(os.path.dirname(conf), FILE_NAME) if conf else ""
    return path if path and os.path.exists(path) else None


# -- a user's own table -----------------------------------------------------------


def read_table(path: str, nodes: Iterable[str], gpus_per_node: int, seed: int, model: str = DEFAULT_MODEL) -> Registry:
    """Read the GPUs of a lab from a CSV with the columns node,index,A,B,C[,uuid,model].

    Raises DataError with the line number or the missing slot.
    """
    wanted = [(node, index) for node in nodes for index in range(gpus_per_node)]
    found: dict[tuple[str, int], EmuGpu] = {}
    uuids: dict[str, int] = {}
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            rows = csv.DictReader(stream, skipinitialspace=True)
            _check_columns(path, rows.fieldnames)
            for row in rows:
                where = f"{path} line {rows.line_num}"
                gpu = _from_csv(where, row, seed, model)
                slot = (gpu.node, gpu.index)
                if slot in found:
                    raise DataError(f"{where}: {gpu.node}:{gpu.index} was given before")
                if gpu.uuid in uuids:
                    raise DataError(f"{where}: uuid {gpu.uuid!r} is also in line {uuids[gpu.uuid]}")
                found[slot], uuids[gpu.uuid] = gpu, rows.line_num
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV: {error}") from None
    for node, index in [slot for slot in wanted if slot not in found]:
        raise DataError(
            f"{path}: no line for GPU {node}:{index}; the lab has {len(wanted)} GPUs, the table {len(found)}"
        )
    places, last = set(wanted), wanted[-1]
    for node, index in [slot for slot in found if slot not in places]:
        raise DataError(f"{path}: GPU {node}:{index} is not in the lab, which ends with {last[0]}:{last[1]}")
    return Registry((found[slot] for slot in wanted), seed)


def _check_columns(path: str, names: Iterable[str] | None) -> None:
    have = set(names or ())
    required, optional = {"node", "index", *CLASSES}, {"uuid", "model"}
    if required - have or have - required - optional:
        raise DataError(f"{path} line 1: columns {sorted(have)} must be node,index,A,B,C and may have uuid,model")


def _from_csv(where: str, row: Mapping[str | None, object], seed: int, model: str) -> EmuGpu:
    if None in row or None in row.values():
        raise DataError(f"{where}: the number of fields is not that of line 1")
    cells = {str(name): str(value).strip() for name, value in row.items()}
    node, index = cells["node"], cells["index"]
    if not node or not index.isdecimal():
        raise DataError(f"{where}: node {node!r}, index {index!r} must be a node name and a whole number from 0")
    slowdown: dict[str, float] = {}
    for name in CLASSES:
        try:
            slowdown[name] = _factor(cells[name])
        except ValueError:
            raise DataError(
                f"{where}: {name} = {cells[name]!r} must be a slowdown in {_ALLOWED[0]:g}..{_ALLOWED[1]:g}, like 1.02"
            ) from None
    uuid = cells.get("uuid") or gpu_uuid(seed, node, int(index))
    model = cells.get("model") or model
    if not _UUID.fullmatch(uuid) or not _NAME.fullmatch(model):
        raise DataError(f"{where}: uuid {uuid!r} and model {model!r} must be short names, like {gpu_uuid(0, 'n0', 0)}")
    return EmuGpu(node, int(index), uuid, model, slowdown, {})


# -- changing the truth, for tests and demonstrations ---------------------------------


def check_fault(name: str, value: object) -> float | bool:
    """The value of a fault as stored. Raises UsageError for a name or value that is not allowed."""
    if name in FLAGS:
        if value is not True:
            raise UsageError(f"fault {name} takes no value, not {value!r}")
        return True
    if name not in FACTORS:
        raise UsageError(f"fault {name!r} is not one of {', '.join((*FLAGS, *FACTORS))}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not _ALLOWED[0] <= value <= _ALLOWED[1]:
        raise UsageError(f"fault {name} needs a factor in {_ALLOWED[0]:g}..{_ALLOWED[1]:g}, like 1.3, not {value!r}")
    return float(value)


def set_fault(path: str, node: str, index: int, name: str, value: float | bool | None = True) -> EmuGpu:
    """Give a GPU a fault, or remove it (`value` None); the GPU as it is now.

    Raises UsageError for an unknown slot or fault, DataError for an unusable file.
    """
    with locked(f"{path}.lock", "a change of the emulated GPUs"):
        registry = load_registry(path)
        gpu = registry.gpu(node, index)
        faults = {known: held for known, held in gpu.faults.items() if known != name}
        if value is None:
            if name not in FLAGS and name not in FACTORS:
                raise UsageError(f"fault {name!r} is not one of {', '.join((*FLAGS, *FACTORS))}")
        else:
            faults[name] = check_fault(name, value)
        changed = gpu._replace(faults=faults)
        registry.put(changed)
        write_registry(path, registry)
    return changed


def wear(path: str, node: str, index: int) -> EmuGpu:
    """What a measurement does to a GPU: `transient` is spent, `ageing` adds to the drift.

    Returns the GPU as it is now. Raises UsageError for an unknown slot, DataError for an
    unusable file, BusyError while somebody else changes it.
    """
    with locked(f"{path}.lock", "a change of the emulated GPUs"):
        registry = load_registry(path)
        gpu = registry.gpu(node, index)
        faults = {name: held for name, held in gpu.faults.items() if name != "transient"}
        if "ageing" in faults:
            worse = gpu.factor("drift") * gpu.factor("ageing")
            faults["drift"] = round(min(max(worse, _ALLOWED[0]), _ALLOWED[1]), 9)
        worn = gpu._replace(faults=faults)
        registry.put(worn)
        write_registry(path, registry)
    return worn


def swap_gpus(path: str, one: tuple[str, int], other: tuple[str, int]) -> None:
    """Exchange the GPUs of two slots, as a technician would: UUID, speed and faults move.

    Raises UsageError for an unknown slot, DataError for an unusable file.
    """
    with locked(f"{path}.lock", "a change of the emulated GPUs"):
        registry = load_registry(path)
        first, second = registry.gpu(*one), registry.gpu(*other)
        registry.put(second._replace(node=first.node, index=first.index))
        registry.put(first._replace(node=second.node, index=second.index))
        write_registry(path, registry)
