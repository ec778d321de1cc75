"""What a job script shows of its work: programs, models, imports, launchers. Pure, and light to import.

Every hit adds weights (of the logarithm of odds) to the three classes; the confidence is the
share of the best class after a softmax, so that hits which contradict each other leave nothing sure.
A weight of `STATED` alone is sure enough by the default threshold; what is merely usual is not.
Classes with a source are those of the catalogue; the others are the usual bound of such work and
carry `USUAL` or `HINT`, which decide only in company.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp

from slurm_pal.jobs import SENSITIVITY_CLASSES
from slurm_pal.sensitivity.cascade import SCRIPT, Evidence
from slurm_pal.sensitivity.catalogue import APPLICATIONS

STATED, USUAL, HINT = 3.0, 1.5, 0.7

PROGRAMS: dict[str, tuple[str, float]] = {
    "xhpl": ("A", STATED), "hpl": ("A", STATED), "sgemm": ("A", STATED), "dgemm": ("A", STATED),
    "cublasmatmulbench": ("A", STATED), "gemm": ("A", STATED), "gpu_burn": ("A", STATED), "gpu-burn": ("A", STATED),
    "xhpcg": ("C", STATED), "hpcg": ("C", STATED), "stream": ("C", STATED), "cuda-stream": ("C", STATED),
    "babelstream": ("C", STATED), "nvbandwidth": ("C", STATED), "bandwidthtest": ("C", STATED),
    "lmp": ("C", STATED), "lammps": ("C", STATED), "pagerank": ("C", STATED), "spmv": ("C", STATED),
    "gmx": ("B", USUAL), "pmemd.cuda": ("B", USUAL), "namd3": ("B", USUAL), "vasp_std": ("B", USUAL),
    "pw": ("B", USUAL),
    "nccl-tests": ("C", USUAL), "all_reduce_perf": ("C", USUAL), "nbody": ("A", USUAL),
    "vllm": ("C", HINT), "trtllm-serve": ("C", HINT), "ollama": ("C", HINT),
}  # fmt: skip
"""Base names of programs, without .exe, .x, .bin and the like."""

MODELS: dict[str, tuple[str, float]] = {
    **{name: (c, STATED) for name, (c, _) in APPLICATIONS.items() if name not in ("stream", "lammps", "hpl", "hpcg")},
    **dict.fromkeys(("resnet18", "resnet34", "resnet101", "resnet152", "wideresnet"), ("A", STATED)),
    **dict.fromkeys(("vgg", "vgg11", "vgg13", "vgg16"), ("C", STATED)),
    **dict.fromkeys(("roberta", "distilbert", "gpt"), ("B", STATED)),
    **dict.fromkeys(("pointnet2", "hpgmg"), ("C", STATED)),
    **dict.fromkeys(("llama", "llama2", "llama3", "mistral", "nanogpt", "t5", "vit", "unet"), ("B", USUAL)),
    **dict.fromkeys(("matmul", "gemm", "conv2d"), ("A", HINT)),
    **dict.fromkeys(("spmv", "gnn", "gcn", "graphsage", "dlrm"), ("C", HINT)),
}  # fmt: skip
"""Words between anything but letters and digits, in lower case."""

IMPORTS: dict[str, tuple[str, float]] = {
    "torchvision": ("A", HINT), "timm": ("A", HINT), "transformers": ("B", HINT), "megatron": ("B", USUAL),
    "deepspeed": ("B", HINT), "torch_geometric": ("C", USUAL), "dgl": ("C", USUAL), "cugraph": ("C", USUAL),
    "cudf": ("C", USUAL), "cuml": ("C", HINT), "xgboost": ("C", HINT), "lightgbm": ("C", HINT),
    "nx_cugraph": ("C", HINT),
    "diffusers": ("B", HINT), "vllm": ("C", HINT),
}  # fmt: skip
"""First names of imported Python modules."""

LAUNCHERS: dict[str, tuple[str, float]] = {
    "torchrun": ("B", HINT), "accelerate": ("B", HINT), "deepspeed": ("B", HINT), "horovodrun": ("B", HINT),
}  # fmt: skip
"""Data-parallel training spends a part of each step on the network and on the host."""

_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789")
_WORDS = bytes(code if code in _LETTERS else 32 for code in range(256))
"""Anything but letters and digits becomes a blank: no regular expression, whose compiling costs more."""
_SUFFIXES = (".exe", ".x", ".bin", ".out", ".py", ".sh", ".sif", ".cuda")
_ENDS = str.maketrans("", "", "\"'`;|&(){}<>")

Table = Mapping[str, tuple[str, float]]
Hit = tuple[str, str, float]
"""One sign: as shown to people, class, weight."""


def evidence(
    script: str, program: str = "", job_name: str = "", apps: Mapping[str, str] | None = None
) -> Evidence | None:
    """The evidence of a script, the Python file that it runs, and the name of the job; None without a sign.

    `apps` is the site's own table (application -> class), which comes before ours.
    """
    own = {name.lower(): (c, STATED) for name, c in (apps or {}).items()}
    hits = {hit[:2]: hit for hit in _hits(script, program, job_name, own)}.values()
    if not hits:
        return None
    sums = dict.fromkeys(SENSITIVITY_CLASSES, 0.0)
    for _, sensitivity, weight in hits:
        sums[sensitivity] += weight
    best = max(SENSITIVITY_CLASSES, key=lambda c: sums[c])
    share = exp(sums[best]) / sum(map(exp, sums.values()))
    shown = ", ".join(what for what, *_ in sorted(hits, key=lambda hit: -hit[2])[:4])
    return Evidence(SCRIPT, best, round(share, 3), f"the script shows {shown}")


def _hits(script: str, program: str, job_name: str, own: Table) -> Iterator[Hit]:
    commands, code = _uncommented(script), _uncommented(program)
    for line in commands:
        yield from _programs(line.split(), own)
    models = {**MODELS, **own}
    for word in sorted(models.keys() & _words(" ".join([*commands, job_name, *code]))):
        yield (word, *models[word])
    for line in (*code, *commands):  # the script may be Python itself
        if "import " in line and line.lstrip().startswith(("import ", "from ")):
            name = (*line.split(), "")[1].partition(".")[0].rstrip(",;")
            if name in IMPORTS:
                yield (f"import {name}", *IMPORTS[name])


def _uncommented(text: str) -> list[str]:
    """The lines of a text without their comments: a `#` at the start of a word, as in sh and Python."""
    lines = text.split("\n")
    if "#" not in text:
        return lines
    return ["" if line.lstrip().startswith("#") else line.partition(" #")[0] for line in lines]


def _words(text: str) -> set[str]:
    return set(text.lower().encode("ascii", "replace").translate(_WORDS).decode().split())


def _programs(words: list[str], own: Table) -> Iterator[Hit]:
    """Base names of a command's words; a launcher counts where it stands before the program."""
    for word in words:
        base = word.translate(_ENDS).rpartition("/")[2].lower()
        stem = base
        for suffix in _SUFFIXES:
            stem = stem.removesuffix(suffix)
        for table in (own, PROGRAMS, LAUNCHERS):
            name = base if base in table else stem
            if name in table:
                yield (name, *table[name])
                break


def python_file(script: str) -> str:
    """The first Python file that a command of the script names, "" for none."""
    for line in _uncommented(script):
        for word in line.split():
            name = word.translate(_ENDS)
            if name.endswith(".py") and "$" not in name:
                return name
    return ""
