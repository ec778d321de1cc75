# SPDX-License-Identifier: MIT
"""What a job script shows of its work: the programs that it runs, the models that it trains. Pure, light to import.

Only what has support in the catalogue shows a class, with the confidence that this support gives. Signs of several
classes, and programs whose bound depends on their input, divide it, so that nothing is sure. A model's name counts
where a command trains, as its file or as the value of an option about the model: the name of a vocabulary, a
tokeniser's run, a download or a check of nodes shows nothing; nor does the job's name, which the history knows.
"""

from __future__ import annotations

from itertools import dropwhile

from slurm_pal.base.jobs import UNKNOWN_CLASS
from slurm_pal.base.light import Iterator, Mapping
from slurm_pal.sensitivity.cascade import SCRIPT, Evidence
from slurm_pal.sensitivity.catalogue import APPLICATIONS, BY_INPUT, MODELS, PROGRAMS, PURPOSE

_BY_INPUT = {program: name for name, programs in BY_INPUT.items() for program in programs}
_TRAINING = frozenset({
    "train", "training", "trainer", "pretrain", "pretraining", "finetune", "finetuning", "fit", "epochs", "epoch", "lr",
})  # fmt: skip
"""Words in the name of what a command runs, or in those of its options, that show training."""
_OTHER_WORK = frozenset({
    "tokenize", "tokenise", "tokenizer", "tokeniser", "tokenizing", "tokenising", "tokenization", "tokenisation", "bpe",
    "preprocess", "preprocessing", "prepare", "preparation", "prep", "create", "convert", "export", "extract", "pack",
    "shard", "shards", "split", "merge", "clean", "dedup", "filter", "index", "cache", "warmup", "dataset", "download",
    "fetch", "upload", "sync", "check", "checks", "healthcheck", "health", "screen", "screening", "verify", "validate",
    "test", "tests", "smoke", "diag", "eval", "evaluate", "evaluation", "infer", "inference", "generate", "predict",
    "serve", "embed", "emb", "embedding", "embeddings", "features", "plot", "report", "analyze", "analyse", "summary",
    "visualize", "show",
})  # fmt: skip
"""Words in the path of what a command runs, or right behind it, by which it is something else than training."""
_NOT_TRAINING = frozenset({"evaluate", "evalonly", "testonly", "predictonly", "inference", "dryrun"})
"""Options by which a program that trains does something else."""
_MODEL_OPTIONS = frozenset(
    {"model", "models", "arch", "architecture", "net", "network", "backbone", "config", "recipe"}
)
_OTHER_OPTIONS = frozenset({
    "tokenizer", "vocab", "cache", "dir", "folder", "output", "save", "log", "data", "dataset", "teacher", "reward",
    "parallel",
})  # fmt: skip
"""Words in the names of options and variables that are about the model, and that are not."""
_CODE_TRAINS = (".backward(", ".fit(", "Trainer(")
_CODE_MODELS = ("from_pretrained(", "create_model(", "get_model(")
"""What Python code has where it trains, and where it makes a model by its name."""

_KEYWORDS = frozenset(
    {"export", "if", "then", "else", "elif", "do", "while", "until", "!", "{", "(", "time", "exec", "nohup"}
)
"""Of a shell, and programs that only run another: the next word is the command."""
_CARRIERS = frozenset({
    "srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "ibrun", "jsrun", "aprun", "env", "numactl",
    "taskset", "nice", "time", "timeout", "stdbuf", "parallel", "xargs", "nsys", "ncu", "nvprof", "rocprof", "sudo",
    "singularity", "apptainer", "enroot", "shifter", "podman", "podman-hpc", "docker", "ch-run", "compute-sanitizer",
    "python", "python2", "python3", "bash", "sh", "perl", "julia", "rscript", "uv", "conda", "mamba", "micromamba",
    "torchrun", "accelerate", "deepspeed", "horovodrun", "torch.distributed.run", "torch.distributed.launch",
    "accelerate.commands.launch", "mpi4py",
})  # fmt: skip
"""Programs that run another, which stands behind their options."""
_PASSIVE = frozenset({
    "echo", "printf", "module", "ml", "cd", "pushd", "popd", "rm", "cp", "mv", "ln", "ls", "cat", "tee", "touch",
    "mkdir", "rmdir", "chmod", "chown", "which", "type", "source", ".", "pip", "pip3", "git", "scp", "ssh", "rsync",
    "tar", "unzip", "gzip", "wget", "curl", "ldd", "find", "grep", "sed", "awk", "cut", "sort", "head", "tail", "du",
    "df", "date", "hostname", "test", "[", "[[", "set", "unset", "ulimit", "trap", "sleep", "wait", "parted", "sbcast",
    "sbatch", "scontrol", "scancel", "squeue", "spack", "make", "cmake", "gcc", "g++", "nvcc",
    "nvidia-smi", "snakemake", "nextflow", "cwltool", "airflow",
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
_SCRIPTS = (".py", ".sh")
_IMAGES = (".sif", ".simg", ".img", ".sqsh", ".squashfs")
_LINES = str.maketrans("", "", "-_")
_ENDS = str.maketrans("", "", "\"'`;|&(){}<>")

Hit = tuple[str, str, float]
"""One sign: as shown to people, class ("?" where its input decides), confidence."""


def evidence(script: str, program: str = "", apps: Mapping[str, str] | None = None) -> Evidence | None:
    """The evidence of a script and of the Python file that it runs; None without a sign.

    `apps` is the site's own table (application -> class), which comes before ours.
    """
    own = {name.lower(): (name.lower(), c, PURPOSE) for name, c in (apps or {}).items()}
    commands = [_Command(words, own) for words in _commands(script)]
    code = script if script.startswith("#!") and "python" in script.partition("\n")[0] else program
    ran = [(_program(command.name, own), command) for command in commands]
    hits = {hit for hit, command in ran if hit and (hit[1] == UNKNOWN_CLASS or not command.is_other_work())}
    text = f"{script}\n{code}".lower().translate(_LINES)
    known = {name for name in (*MODELS, *own) if name.translate(_LINES) in text}
    if known:
        hits |= {own.get(name) or _catalogued(name) for name in _models(commands, code, known, own)}
    if not hits:
        return None
    _, best, support = max(hits, key=lambda hit: (hit[2], hit))
    confidence = support / len({sensitivity for _, sensitivity, _ in hits})
    shown = ", ".join(what for what, *_ in sorted(hits, key=lambda hit: (-hit[2], hit))[:4])
    return Evidence(SCRIPT, best, round(confidence, 3), f"the script shows {shown}")


def _program(name: str, own: Mapping[str, Hit]) -> Hit | None:
    """What is known of a program by its base name, with or without its suffixes."""
    stem = name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    for base in (name, stem, name.partition(".")[0] if "." in name else ""):
        if base in own:
            return own[base]
        if base in PROGRAMS:
            return _catalogued(PROGRAMS[base])
        if base in _BY_INPUT:
            return (f"{_BY_INPUT[base]}, whose class depends on its input", UNKNOWN_CLASS, 0.0)
    return None


def _catalogued(name: str) -> Hit:
    return (name, APPLICATIONS[name].sensitivity, APPLICATIONS[name].support)


def _models(commands: list[_Command], code: str, known: set[str], own: Mapping[str, Hit]) -> set[str]:
    """The known models that the script trains, and those of the site's table that a command works with."""
    code_trains = any(sign in code for sign in _CODE_TRAINS)
    works = [command for command in commands if not command.is_other_work()]
    trains = works if code_trains else [command for command in works if command.trains()]
    named = {name for command in trains for name in command.models()}
    named |= {name for command in works for name in command.models() if name in own}
    if trains:
        named |= {name for command in commands for name in command.variables()}
    if trains and not any(command.states_model() for command in trains):
        named |= _made(code, known)
    return named & known


def _made(code: str, known: set[str]) -> set[str]:
    """The known models that lines of Python make, not their tokenisers."""
    found: set[str] = set()
    for line in _uncommented(code):
        low = line.lower()
        if "(" not in low or "tokenizer" in low:
            continue
        if any(maker in low for maker in _CODE_MODELS):
            found |= _words(low) & known
        else:
            found |= {name for name in _words(low) & known if f"{name}(" in low}
    return found


class _Command:
    """One command of a script: the base name of what it runs, and what its words say of models and training."""

    def __init__(self, words: list[str], own: Mapping[str, Hit]) -> None:
        plain = [word.translate(_ENDS) for word in words]
        at = _run(plain, own)
        self.name = _base(plain[at]) if at < len(plain) else ""
        self._before, self._path, self._behind = plain[:at], "".join(plain[at : at + 1]), plain[at + 1 :]

    def is_other_work(self) -> bool:
        """Whether its name or an option shows something else than training, such as tokenising or a test."""
        return bool(self._doing() & _OTHER_WORK) or any(key.translate(_LINES) in _NOT_TRAINING for key in self._keys())

    def trains(self) -> bool:
        """Whether the name of what it runs or one of its options shows training."""
        return bool(self._doing().union(*map(_words, self._keys())) & _TRAINING)

    def models(self) -> set[str]:
        """The words by which it may name models."""
        return _words(_local(self._path)).union(*(_words(_local(value)) for _, value in self._stated()))

    def states_model(self) -> bool:
        """Whether it has an option that names the model, known or not."""
        return any("config" not in key for key, _ in self._stated())

    def variables(self) -> set[str]:
        """The words of the variables about models that it sets."""
        before = [word.partition("=") for word in self._before if _assigns(word)]
        return set[str]().union(*(_words(_local(value)) for key, _, value in before if _is_model(key)))

    def _keys(self) -> list[str]:
        return [key.lower() for key, _ in _pairs(self._behind)]

    def _doing(self) -> set[str]:
        action = "".join(self._behind[:1])
        return _words(_local(self._path)) | (_words(action) if action.isalpha() else set())

    def _stated(self) -> list[tuple[str, str]]:
        return [(key, value) for key, value in _pairs(self._behind) if _is_model(key)]


def _run(words: list[str], own: Mapping[str, Hit]) -> int:
    """Where a command names what it runs: its first word; behind one that runs others, the first known program, module,
    script or other path. Past its end for none."""
    carried = python = False
    for i, word in enumerate(words):
        base = _base(word)
        if _assigns(word):
            continue
        python = python or base.startswith(("python", "torchrun"))
        is_value = i > 0 and words[i - 1].startswith("-") and "=" not in words[i - 1]
        if base in _CARRIERS:
            carried = True
        elif not carried or (python and words[i - 1] == "-m") or _program(base, own) or _is_path(word, base, is_value):
            return i
    return len(words)


def _base(word: str) -> str:
    return word.rpartition("/")[2].lower()


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Options and settings with their values: `--model=x`, `--model x`, `model=x`; "" for none."""
    for i, word in enumerate(words):
        key, sign, value = word.partition("=")
        behind = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("-") else ""
        if sign or word.startswith("-"):
            yield key, value if sign else behind


def _is_model(key: str) -> bool:
    words = _words(key)
    return bool(words & _MODEL_OPTIONS) and not words & _OTHER_OPTIONS


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


def _local(word: str) -> str:
    """A word without the folders of a path that is not relative: they name places and people, like /home/NAME/."""
    return word.rpartition("/")[2] if word.startswith(("/", "~", "$")) else word


def _words(text: str) -> set[str]:
    """The words of a text, and each two neighbours as one: resnet-50 is resnet50."""
    words = text.lower().encode("ascii", "replace").translate(_WORDS).decode().split()
    return {*words, *map(str.__add__, words, words[1:])}


def _is_path(word: str, base: str, is_value: bool) -> bool:
    """Whether a word behind a launcher is the path of what it runs: no option or its value, no mapping, no image."""
    if word.startswith("-") or ":" in word or base.endswith(_IMAGES):
        return False
    return base.endswith(_SCRIPTS) or ("/" in word and not is_value)


def python_file(script: str) -> str:
    """The first Python file that a command of the script names as its work, "" for none."""
    for words in _commands(script):
        if _Command(words, {}).is_other_work():
            continue
        for word in words:
            name = word.translate(_ENDS)
            if name.endswith(".py") and "$" not in name:
                return name
    return ""
