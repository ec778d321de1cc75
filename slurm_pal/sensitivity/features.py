# SPDX-License-Identifier: MIT
"""What a job script shows of its work: programs, models, imports, launchers. Pure, and light to import.

Every hit adds weights (of the logarithm of odds) to the three classes; the confidence is the
share of the best class after a softmax, so that hits which contradict each other leave nothing sure.
A weight of `STATED` alone is sure enough by the default threshold; what is merely usual is not.
Classes with a source are those of the catalogue; the others are the usual bound of such work and
carry `USUAL` or `HINT`, which decide only in company.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import dropwhile
from math import exp

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.sensitivity.cascade import SCRIPT, Evidence
from slurm_pal.sensitivity.catalogue import APPLICATIONS

STATED, USUAL, HINT = 3.0, 1.5, 0.7

PROGRAMS: dict[str, tuple[str, float]] = {
    "xhpl": ("A", STATED), "hpl": ("A", STATED), "sgemm": ("A", STATED), "dgemm": ("A", STATED),
    "cublasmatmulbench": ("A", STATED), "gemm": ("A", STATED), "gpu_burn": ("A", STATED), "gpu-burn": ("A", STATED),
    "xhpcg": ("C", STATED), "hpcg": ("C", STATED), "stream": ("C", STATED), "cuda-stream": ("C", STATED),
    "babelstream": ("C", STATED), "nvbandwidth": ("C", STATED), "bandwidthtest": ("C", STATED),
    "lammps": ("C", STATED), "pagerank": ("C", STATED), "spmv": ("C", STATED),
    **dict.fromkeys(("lmp", "lmp_mpi", "lmp_gpu", "lmp_cuda", "lmp_kokkos", "lmp_kokkos_cuda_mpi"), ("C", STATED)),
    **dict.fromkeys(("gmx", "gmx_mpi", "pmemd.cuda", "pmemd.cuda.mpi", "namd2", "namd3", "pw"), ("B", USUAL)),
    **dict.fromkeys(("vasp_std", "vasp_gam", "vasp_ncl", "vasp_gpu"), ("B", USUAL)),
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

_KEYWORDS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "(", "time", "exec", "nohup"})
"""Of a shell, and programs that only run another: the next word is the command."""
_CARRIERS = frozenset({
    "srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "ibrun", "jsrun", "aprun", "env", "numactl",
    "taskset", "nice", "timeout", "stdbuf", "parallel", "xargs", "nsys", "ncu", "nvprof", "rocprof", "sudo",
    "singularity", "apptainer", "enroot", "shifter", "podman", "podman-hpc", "docker", "ch-run", "compute-sanitizer",
    "python", "python2", "python3", "bash", "sh", "perl", "julia", "rscript", "uv", "conda", "mamba", "micromamba",
    *LAUNCHERS,
})  # fmt: skip
"""Programs that run another, which stands behind their options."""
_PASSIVE = frozenset({
    "echo", "printf", "module", "ml", "cd", "pushd", "popd", "rm", "cp", "mv", "ln", "ls", "cat", "tee", "touch",
    "mkdir", "rmdir", "chmod", "chown", "which", "type", "source", ".", "pip", "pip3", "git", "scp", "ssh", "rsync",
    "tar", "unzip", "gzip", "wget", "curl", "ldd", "find", "grep", "sed", "awk", "cut", "sort", "head", "tail", "du",
    "df", "date", "hostname", "test", "[", "[[", "set", "unset", "ulimit", "trap", "sleep", "wait", "parted", "sbcast",
    "sbatch", "scontrol", "scancel", "squeue", "spack", "make", "cmake", "gcc", "g++", "nvcc",
    "nvidia-smi",
})  # fmt: skip
"""Commands whose words say nothing of the job's work."""
_PASSIVE_PAIRS = frozenset({("conda", "activate"), ("conda", "install"), ("conda", "create"), ("mamba", "activate"),
                            ("micromamba", "activate"), ("uv", "pip"), ("docker", "pull"), ("apptainer", "build"),
                            ("apptainer", "pull"), ("singularity", "build"), ("singularity", "pull")})  # fmt: skip
_JOINTS = ("&&", "||", ";", "|")

_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789")
_WORDS = bytes(code if code in _LETTERS else 32 for code in range(256))
"""Anything but letters and digits becomes a blank: no regular expression, whose compiling costs more."""
_SUFFIXES = (".exe", ".x", ".bin", ".out", ".py", ".sh", ".sif", ".cuda")
_IMAGES = (".sif", ".simg", ".img", ".sqsh", ".squashfs")
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
    commands, code = list(_commands(script)), _uncommented(program)
    for words in commands:
        yield from _programs(words, own)
    lines = [*(" ".join(map(_at_home, words)) for words in commands), job_name, *code]
    models = {**MODELS, **own}
    for word in sorted(models.keys() & _words(" ".join(lines))):
        yield (word, *models[word])
    for line in lines:  # the script may be Python itself
        if "import " in line and line.lstrip().startswith(("import ", "from ")):
            name = (*line.split(), "")[1].partition(".")[0].rstrip(",;")
            if name in IMPORTS:
                yield (f"import {name}", *IMPORTS[name])


def _uncommented(text: str) -> list[str]:
    """The lines of a text without their comments: a `#` at the start of a word, as in sh and Python."""
    lines = text.split("\n")
    if "#" not in text:
        return lines
    return ["" if line.lstrip().startswith("#") else line.partition(" #")[0].partition("\t#")[0] for line in lines]


def _commands(script: str) -> Iterator[list[str]]:
    """The words of each command that may be the job's work; neither its comments nor texts that it writes."""
    lines = _uncommented(script.replace("\\\n", " "))
    ends = {line.strip() for line in lines} if "<<" in script else set()
    end = ""  # of a text that is not looked at
    for line in lines:
        if end:
            end = "" if line.strip() == end else end
            continue
        parts = [(words, _is_passive(words)) for words in _parts(line)]
        yield from (words for words, passive in parts if not passive)
        if "<<" in line and any(passive for _, passive in parts):
            end = line.partition("<<")[2].lstrip("-").split(" ")[0].translate(_ENDS)
            end = end if end in ends else ""


def _parts(line: str) -> Iterator[list[str]]:
    """The words of each simple command of a line, without the shell's own words before them."""
    for joint in _JOINTS:
        line = line.replace(joint, "\n") if joint in line else line
    for part in line.split("\n"):
        words = list(dropwhile(_KEYWORDS.__contains__, part.split()))
        if words:
            yield words


def _is_passive(words: list[str]) -> bool:
    run = [word for word in words[:4] if not _assigns(word)]
    return bool(run) and (run[0] in _PASSIVE or tuple(run[:2]) in _PASSIVE_PAIRS)


def _assigns(word: str) -> bool:
    return "=" in word and word.partition("=")[0].isidentifier()


def _at_home(word: str) -> str:
    """A word without the parts of a path that name places and people, like /home/NAME/ or ~NAME/."""
    if "/" not in word:
        return word
    option, sign, path = word.rpartition("=")
    path = path.lstrip("\"'")
    if path.startswith("/"):
        path = "/".join(path.split("/")[3:]) or path.rpartition("/")[2]
    elif path.startswith("~"):
        path = path.partition("/")[2]
    return option + sign + path


def _words(text: str) -> set[str]:
    return set(text.lower().encode("ascii", "replace").translate(_WORDS).decode().split())


def _programs(words: list[str], own: Table) -> Iterator[Hit]:
    """What a command runs: its first word; behind one that runs others, the first known program or other path."""
    carried = False
    for i, word in enumerate(words):
        if _assigns(word):
            continue
        base = word.translate(_ENDS).rpartition("/")[2].lower()
        hit = _known(base, own)
        if hit:
            yield hit
        carried = carried or base in _CARRIERS
        value = i > 0 and words[i - 1].startswith("-")
        if not carried or (hit and hit[0] not in LAUNCHERS) or ("/" in word and not value and not _no_program(word)):
            return


def _no_program(word: str) -> bool:
    """Whether a path behind a launcher is one of its options, an image, or itself a launcher."""
    base = word.rpartition("/")[2].lower()
    return word.startswith("-") or ":" in word or base.endswith(_IMAGES) or base in _CARRIERS


def _known(base: str, own: Table) -> Hit | None:
    stem = base
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    for table in (own, PROGRAMS, LAUNCHERS):
        name = base if base in table else stem
        if name in table:
            return (name, *table[name])
    return None


def python_file(script: str) -> str:
    """The first Python file that a command of the script names, "" for none."""
    for words in _commands(script):
        for word in words:
            name = word.translate(_ENDS)
            if name.endswith(".py") and "$" not in name:
                return name
    return ""
