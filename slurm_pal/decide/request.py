# SPDX-License-Identifier: MIT
"""What a job asks for, as far as it bears on the choice of GPUs: from sbatch's options, by their long names.

What we cannot map without guessing is left to Slurm, with the reason.
"""

from __future__ import annotations

from slurm_pal.base.errors import UsageError
from slurm_pal.base.hostlist import expand
from slurm_pal.base.jobs import UNKNOWN_CLASS, GpuShape
from slurm_pal.base.light import Mapping, NamedTuple
from slurm_pal.base.numbers import amount, digits
from slurm_pal.sensitivity.cascade import SCRIPT
from slurm_pal.slurm.gres import other_gres
from slurm_pal.slurm.parse import seconds

NO_GPU_WORDS = "--exclusive, but the job asks for no GPU, and its class is neither stated nor measured"
OURS_SOFT = "pal_"
"""How the names of our class features begin."""


class Request(NamedTuple):
    """One submission. `leave` says why the choice of nodes is Slurm's; "" when we may choose."""

    leave: str = ""
    shape: GpuShape | None = None  # for `nodes_min` nodes where the user gave a range
    nodes_min: int = 1
    nodes_max: int | None = None  # None: open, Slurm takes what it needs
    tasks: int = 1
    tasks_per_node: int | None = None
    cpus_per_task: int = 1
    cpus_per_gpu: int = 0
    min_cpus: int = 0
    mem_per_node_mib: int | None = None  # 0: all of a node's memory
    mem_per_cpu_mib: int = 0
    mem_per_gpu_mib: int = 0
    most_mem_cpu_mib: int = 0  # by its partition; 0: no limit
    threads_per_core: int = 0  # on which its tasks may run; 0: all
    tasks_per_core: int = 0  # 0: as many as a core has threads
    empty_nodes: bool = False  # which cores Slurm gives decides, and what is free of them is not shown
    others: tuple[tuple[str, int], ...] = ()  # generic resources beside GPUs on each node, as `Node.others_free`
    req_nodes: tuple[str, ...] = ()
    exc_nodes: tuple[str, ...] = ()
    constraint: str = ""
    partitions: tuple[str, ...] = ()
    reservation: str = ""
    switches: int = 0  # the most leaf switches that the user wants; 0: any number
    segment: int = 0  # so many nodes each in one block; 0: not asked for
    own_blocks: bool = False  # no block with another job (--exclusive=topo)
    submitted: bool = False  # all its options are known: of a job in the queue Slurm shows most of them
    time_limit_s: int | None = None
    comment: str = ""
    parsable: bool = False
    asks_gpus: bool = False  # False with a shape: --exclusive, given the GPUs of its nodes unasked
    soft_only: str = ""  # why no hard node list may be used; "" when it may

    @property
    def spreads(self) -> bool:
        """Whether it asks for several GPUs in all, on as many nodes as Slurm likes."""
        shape = self.shape
        total = shape is not None and shape.per_node is None and not shape.whole_nodes and shape.total > 1
        return total and self.nodes_max != self.nodes_min

    @property
    def takes(self) -> tuple[object, ...]:
        """All that decides how much of a node it takes beside its GPUs."""
        return (
            self.cpus_per_task, self.cpus_per_gpu, self.min_cpus, self.mem_per_node_mib, self.mem_per_cpu_mib,
            self.mem_per_gpu_mib, self.most_mem_cpu_mib, self.threads_per_core, self.tasks_per_core, self.empty_nodes,
            self.others,
        )  # fmt: skip


_LEAVE: dict[str, str] = {
    "clusters": "--clusters: another cluster may take the job",
    "cluster-constraint": "--cluster-constraint: another cluster may take the job",
    "begin": "--begin: the job does not start now",
    "dependency": "--dependency: the job does not start now",
    "hold": "--hold: the job does not start now",
    "bb": "burst buffers are staged first: the job does not start now",
    "bbf": "burst buffers are staged first: the job does not start now",
    "burst-buffer": "burst buffers are staged first: the job does not start now",
    "reboot": "--reboot: the job does not start now",
    "nodefile": "--nodefile names the nodes",
    "contiguous": "--contiguous: Slurm weighs the order of nodes",
    "spread-job": "--spread-job: Slurm spreads the job",
    "consolidate-segments": "--consolidate-segments: Slurm weighs the network",
    "spread-segments": "--spread-segments: Slurm weighs the network",
    "gpus-per-socket": "--gpus-per-socket: which GPUs Slurm gives depends on sockets",
    "ntasks-per-gpu": "--ntasks-per-gpu: Slurm derives the number of GPUs",
    "tres-per-task": "--tres-per-task: Slurm derives the number of GPUs",
    "resources": "--resources: Slurm derives the nodes",
    "prefer": "--prefer is the user's own",
    "batch": "--batch picks the first node by features",
    "extra": "--extra may constrain the nodes",
    "tmp": "--tmp: free disk is not known here",
    "uid": "--uid: the job belongs to another user",
    "external": "--external: the job runs nothing",
}


_GPU_OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_SOCKETS = (
    "ntasks-per-socket", "extra-node-info", "sockets-per-node", "cores-per-socket", "core-spec", "thread-spec",
    "gres-flags",
)  # fmt: skip
"""Options by which Slurm looks at the sockets and cores of a node, of which we know only how many CPUs are free."""
_SHARES_OF_GPUS = ("shard", "mps")
_NODES_DIGITS, _MEMORY_DIGITS = 9, 15


class Conflict(Exception):
    """The request cannot be mapped; the text is the reason to leave the choice to Slurm."""


def read(opts: Mapping[str, str], submitted: bool = False) -> Request:
    """The request that these options make, name -> value. Never raises: doubts end in `leave`.

    `submitted` says that sbatch will have them, which puts a job on no more nodes than it has tasks.
    """
    try:
        return _read(opts, submitted)
    except (Conflict, UsageError) as reason:
        return Request(leave=str(reason))


def _read(opts: Mapping[str, str], submitted: bool) -> Request:
    for name, reason in _LEAVE.items():
        if name in opts:
            raise Conflict(reason)
    for name in ("switches", "segment"):
        if name in opts and not submitted:
            raise Conflict(f"--{name}: Slurm weighs the network")
    if opts.get("exclusive") == "topo" and not submitted:
        raise Conflict("--exclusive=topo: Slurm decides who shares a block")
    if opts.get("distribution", "").startswith("arbitrary"):
        raise Conflict("--distribution=arbitrary: the user lays the tasks out")
    low, high = _node_range(opts.get("nodes"))
    tasks = _number(opts, "ntasks", 0)
    per_node_tasks = _number(opts, "ntasks-per-node", 0) or None
    if submitted and tasks:  # of a longer --nodelist sbatch drops the rest
        low, high = min(low, tasks), None if high is None else min(high, tasks)
        if tasks == 1 and opts.get("gpus", "1").rpartition(":")[2] != "1":
            high = 1
    if high is not None and per_node_tasks and tasks > high * per_node_tasks:
        raise Conflict(f"{tasks} tasks do not fit on {high} nodes with {per_node_tasks} tasks each")
    if high is None and tasks and per_node_tasks:
        low = high = -(-tasks // per_node_tasks)
    tasks = tasks or low * (per_node_tasks or 1)
    shape, low, high = _shape(opts, low, high, tasks, per_node_tasks)
    request = Request(
        shape=shape,
        nodes_min=low,
        nodes_max=high,
        tasks=max(tasks, low),
        tasks_per_node=per_node_tasks,
        cpus_per_task=0 if "overcommit" in opts else _number(opts, "cpus-per-task", 1),
        cpus_per_gpu=_number(opts, "cpus-per-gpu", 0),
        min_cpus=_number(opts, "mincpus", 0),
        mem_per_node_mib=_mebibytes(opts, "mem") if "mem" in opts else None,
        mem_per_cpu_mib=_mebibytes(opts, "mem-per-cpu"),
        mem_per_gpu_mib=_mebibytes(opts, "mem-per-gpu"),
        threads_per_core=1 if opts.get("hint") == "nomultithread" else _number(opts, "threads-per-core", 0),
        tasks_per_core=_number(opts, "ntasks-per-core", 0),
        empty_nodes=opts.get("hint", "").endswith("_bound") or any(name in opts for name in _SOCKETS),
        others=_others(opts),
        req_nodes=_hosts(opts, "nodelist"),
        exc_nodes=_hosts(opts, "exclude"),
        constraint=opts.get("constraint", ""),
        partitions=tuple(filter(None, opts.get("partition", "").split(","))),
        reservation=opts.get("reservation", ""),
        switches=_number({"switches": opts.get("switches", "").partition("@")[0]}, "switches", 0),
        segment=_number(opts, "segment", 0),
        own_blocks=opts.get("exclusive") == "topo",
        submitted=submitted,
        time_limit_s=seconds(opts["time"]) if "time" in opts else None,
        comment=opts.get("comment", ""),
        parsable="parsable" in opts,
        asks_gpus=any(_gpus(opts.get(name, ""), f"--{name}", gres=name == "gres")[1] for name in _GPU_OPTIONS),
        soft_only=_soft_only(opts),
    )
    if request.req_nodes and shape is not None:
        _check_own_list(request, shape)
    if request.segment and (high != low or low % request.segment):
        raise Conflict(f"--segment={request.segment}: it does not divide one fixed number of nodes")
    return request


def for_class(request: Request, sensitivity: str, origin: str) -> Request:
    """The request of a job whose class is known from `origin`.

    A job with --exclusive is given the GPUs of its nodes whether or not it uses them. Where it asks for none, their
    speed counts only if its class was stated or measured: what its script shows may be work for CPUs.
    """
    if request.leave or request.asks_gpus or request.shape is None:
        return request
    return request._replace(leave=NO_GPU_WORDS) if origin == SCRIPT or sensitivity == UNKNOWN_CLASS else request


def _soft_only(opts: Mapping[str, str]) -> str:
    if "array" in opts:
        return "an array has one node list for all its tasks"
    if "quiet" in opts:
        return "with --quiet sbatch prints no job id, so nobody could take a node list back"
    return ""


def _check_own_list(request: Request, shape: GpuShape) -> None:
    if request.nodes_max is not None and len(request.req_nodes) >= request.nodes_max:
        raise Conflict("the user's own --nodelist names all nodes")
    if shape.per_node is None or request.nodes_max != request.nodes_min:
        raise Conflict("--nodelist names only some of the nodes, and their number is not fixed")


def _shape(
    opts: Mapping[str, str], low: int, high: int | None, tasks: int, per_node_tasks: int | None
) -> tuple[GpuShape | None, int, int | None]:
    """The GPU shape for the least number of nodes, that number, and the largest (None: open)."""
    kind_n, per_node = _gpus(opts.get("gres", ""), "--gres", gres=True)
    kind_m, per_node_2 = _gpus(opts.get("gpus-per-node", ""), "--gpus-per-node")
    kind_t, total = _gpus(opts.get("gpus", ""), "--gpus")
    kind_k, per_task = _gpus(opts.get("gpus-per-task", ""), "--gpus-per-task")
    kinds = {kind for kind in (kind_n, kind_m, kind_t, kind_k) if kind}
    if len(kinds) > 1:
        raise Conflict(f"GPU types {', '.join(sorted(kinds))} are asked for together")
    if per_node and per_node_2 and per_node != per_node_2:
        raise Conflict("--gres and --gpus-per-node ask for different numbers of GPUs")
    per_node = per_node or per_node_2
    whole = _exclusive(opts)
    if per_task and not total:
        total = per_task * tasks
        if per_node_tasks and high is not None:
            per_node, total = per_task * per_node_tasks, 0
    if per_node and total:
        if total % per_node:
            raise Conflict(f"{total} GPUs cannot be {per_node} on each node")
        low = high = total // per_node
    if not per_node and not total:
        if not whole:
            return None, low, high
        per_node = 1  # the job is given every GPU of its nodes, whether it asks or not
    kind = next(iter(kinds), "")
    if per_node:
        shape = GpuShape(per_node * low, low, per_node, kind, whole)
        return shape, low, high if high is not None or tasks > 1 else low
    return GpuShape(total, low if high is not None else None, None, kind, whole), low, high


def _exclusive(opts: Mapping[str, str]) -> bool:
    if opts.get("exclusive", "") in ("user", "mcs"):
        raise Conflict(f"--exclusive={opts['exclusive']}: Slurm decides who shares a node")
    return "exclusive" in opts and opts["exclusive"] != "topo"


def _gpus(text: str, option: str, gres: bool = False) -> tuple[str, int]:
    """(type, number) of a GPU request; ("", 0) when there is none."""
    kind, number, seen = "", 0, 0
    for part in filter(None, text.split(",")):
        words = part.removeprefix("gres:").removeprefix("gres/").replace("=", ":").replace("/", ":").split(":")
        if gres and words[0] in _SHARES_OF_GPUS:
            raise Conflict(f"{option}={text}: which GPUs Slurm shares out is not known here")
        if gres and words[0] != "gpu":  # see `_others`
            continue
        words = words[1:] if gres else words
        count = digits(words[-1]) if words else None
        words = words if count is None else words[:-1]
        seen += 1
        if seen > 1 or len(words) > 1:
            raise Conflict(f"{option}={text}: several GPU types at once")
        kind, number = (words[0] if words else ""), 1 if count is None else count
    return kind, number


def _others(opts: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Generic resources beside GPUs; of a type where one is asked for."""
    found = other_gres(opts.get("gres", ""))
    found.pop("none", None)
    return tuple(found.items())


def _node_range(text: str | None) -> tuple[int, int | None]:
    if not text:
        return 1, None
    first, dash, last = text.partition("-")
    low, high = digits(first), digits(last if dash else first)
    if low is None or high is None or not 1 <= low <= high or max(len(first), len(last)) > _NODES_DIGITS:
        raise Conflict(f"--nodes={text} is not one number or a range")
    return low, high


def _number(opts: Mapping[str, str], name: str, default: int) -> int:
    text = opts.get(name, "")
    if not text:
        return default
    number = digits(text)
    if number is None:
        raise Conflict(f"--{name}={text} is not a number")
    return number


def _mebibytes(opts: Mapping[str, str], name: str) -> int:
    """sbatch(1): megabytes unless a suffix K, M, G or T says otherwise."""
    text = opts.get(name, "")
    if not text:
        return 0
    found = amount(text[:-1] if text[-1] in "bB" else text, "KMGT", _MEMORY_DIGITS)
    if found is None:
        raise Conflict(f"--{name}={text} is not an amount of memory")
    return -(-found[0] * {"K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}[found[1] or "M"] // 1024)


def _hosts(opts: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = opts.get(name, "")
    if "/" in text:
        raise Conflict(f"--{name}={text} is a file of node names")
    return expand(text)
