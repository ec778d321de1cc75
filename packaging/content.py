# SPDX-License-Identifier: MIT
"""What the packages slurm-pal and slurm-pal-submit contain, and where; deb.py and rpm.py make files of it.

Both fill one private folder, /usr/lib/slurm-pal, with the layout of a virtual environment whose Python is the
distribution's: no package of it or of the site changes what is imported there. slurm-pal-submit has the files that
palsub needs, slurm-pal all others. Neither owns a file of /etc or /var, and neither starts anything.
"""

from __future__ import annotations

import ast
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from email.parser import HeaderParser
from pathlib import Path

HOME = Path("usr/lib/slurm-pal")
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = HOME / "lib" / f"python{MINOR}" / "site-packages"
SUBMIT, WHOLE = "slurm-pal-submit", "slurm-pal"
PROGRAMS = ("palsub", "pal", "pal-profile", "pal-rebalance")
PURE = "ClusterShell"
"""The one package that palsub imports beside the standard library: pure Python, for lists of several nodes."""
MAN = {SUBMIT: ("palsub.1", "pal.toml.5"), WHOLE: ("pal.1", "pal-profile.1", "pal-rebalance.1", "pal-trial.1")}
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/{}",
    "fish": "usr/share/fish/vendor_completions.d/{}.fish",
}
STARTER = """\
#!/{home}/bin/python3 -I
# SPDX-License-Identifier: MIT
import sys

from slurm_pal.cli.start import {function}

sys.exit({function}())
"""
SUMMARY = {
    SUBMIT: (
        "palsub for login nodes: sbatch with GPU placement",
        """\
 palsub submits a batch job to a stock Slurm, and chooses its nodes by what each
 GPU really delivers. This package has what a login node needs.""",
    ),
    WHOLE: (
        "GPU placement by measured variability for stock Slurm",
        """\
 GPUs that are identical on paper are not equally fast. slurm-pal measures every
 GPU through Slurm itself, and makes stock Slurm place jobs by variability class,
 sensitivity and locality. This package is for controllers and compute nodes; it
 starts no service: pal admin install does that.""",
    ),
}


@contextmanager
def filled(python: str, zsh: str) -> Iterator[tuple[Path, Path]]:
    """The root directories of slurm-pal-submit and slurm-pal, as packages for `python` have them; removed at the end.

    `python` is the full path of the interpreter on the machines, of the minor version of this one; `zsh` where its
    completions are there. Raises RuntimeError where the interpreter here is another one, and CalledProcessError.
    """
    minor = said(python, "-I", "-c", "import sys; print(*sys.version_info[:2], sep='.')")
    if minor != MINOR:
        raise RuntimeError(
            f"{sys.executable} is Python {MINOR}, {python} is {minor}, and packages are for the latter: make clean, "
            f"then the same with PYTHON={python}"
        )
    os.umask(0o022)
    if "SOURCE_DATE_EPOCH" not in os.environ:
        if not Path(".git").exists():
            raise RuntimeError("this is no clone, whose last commit has a time: set SOURCE_DATE_EPOCH, in seconds")
        os.environ["SOURCE_DATE_EPOCH"] = said("git", "log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory(prefix="pal-packages") as folder:
        whole, submit = Path(folder, WHOLE), Path(folder, SUBMIT)
        install(whole, python, zsh)
        site = whole / SITE
        palsub = [HOME / "bin" / "python3", HOME / "bin" / "palsub", HOME / "pyvenv.cfg", Path("usr/bin/palsub")]
        for name in [*(str(SITE / name) for name in submit_files(site)), *map(str, palsub)]:
            (submit / name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(whole / name, submit / name)
        for root in (submit, whole):
            share(root)
            refuse_paths(root, [folder, os.getcwd(), sys.prefix])
            drop_empty(root)
            settle(root)
        yield submit, whole


def install(root: Path, python: str, zsh: str) -> None:
    """slurm-pal and the locked versions of what it needs, below `root`."""
    home = root / HOME
    site = root / SITE
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-compile"]
    os.environ["CFLAGS"] = "-g0"  # what must be compiled names no folder of this machine
    run(*pip, "--require-hashes", "--use-pep517", "--target", str(site), "-r", "etc/locked/run.txt")
    run(*pip, "--target", str(site), "--upgrade", ".")
    for made in ("build", "slurm_pal.egg-info"):
        shutil.rmtree(made, ignore_errors=True)
    for name in ("bin", "etc", "share"):  # of others: programs, settings and manual pages that nothing would find here
        shutil.rmtree(site / name, ignore_errors=True)
    for info in site.glob("*.dist-info"):
        for name in ("RECORD", "direct_url.json", "REQUESTED"):  # of pip, which is not to change anything here
            (info / name).unlink(missing_ok=True)
    for tests in [path for path in site.rglob("tests") if path.is_dir()]:
        shutil.rmtree(tests)
    run(
        python, "-I", "-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash",
        "-s", str(root), "-p", "/", str(site),
    )  # fmt: skip
    (home / "bin").mkdir()
    (home / "bin" / "python3").symlink_to(python)
    (home / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\ninclude-system-site-packages = false\n")
    shutil.copy("bin/palsub", home / "bin" / "palsub")
    (home / "bin" / "pal").symlink_to("palsub")
    for function in ("profile", "rebalance"):
        path = home / "bin" / f"pal-{function}"
        path.write_text(STARTER.format(home=HOME, function=function))
        path.chmod(0o755)
    (root / "usr/bin").mkdir()
    for program in PROGRAMS:
        (root / "usr/bin" / program).symlink_to(f"../lib/slurm-pal/bin/{program}")
    complete(root, COMPLETIONS | {"zsh": zsh})


def complete(root: Path, places: dict[str, str]) -> None:
    """Shell completions, as click writes them: palsub is not one of its programs."""
    for program in PROGRAMS[1:]:
        for shell, place in places.items():
            path = root / place.format(program)
            path.parent.mkdir(parents=True, exist_ok=True)
            variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
            argv = [str(Path(sys.executable).parent / program)]
            path.write_text(said(*argv, environ=os.environ | {variable: f"{shell}_source"}) + "\n")


def share(root: Path) -> None:
    """Man pages, licences and examples of one package."""
    doc = root / "usr/share/doc" / root.name
    doc.mkdir(parents=True)
    (doc / "copyright").write_text(licences(root / SITE, f"/{SITE}"))
    pack(Path("CHANGELOG.md").read_bytes(), doc / "changelog.gz")
    for page in MAN[root.name]:
        pack(Path("docs/_build/man", page).read_bytes(), root / "usr/share/man" / f"man{page[-1]}" / f"{page}.gz")
    if root.name == SUBMIT:
        (doc / "examples").mkdir()
        shutil.copy("etc/pal.toml", doc / "examples")
    else:
        (doc / "examples").symlink_to(f"/{SITE}/slurm_pal/etc")


def licences(site: Path, place: str) -> str:
    """The text of `copyright`: our licence, and which one each package of others has."""
    found = []
    for path in sorted(site.glob("*.dist-info/METADATA")):
        told = HeaderParser().parsestr(path.read_text("utf-8"))
        if told["Name"] != WHOLE:
            known = [c.rpartition(" :: ")[2] for c in told.get_all("Classifier", []) if c.startswith("License ::")]
            stated = told["License-Expression"] or ", ".join(known) or told["License"]
            found.append(f"{told['Name']} {told['Version']}: {stated}; {place}/{path.parent.name}")
    ours = Path("LICENSE").read_text()
    return f"{ours}\nOf others, unchanged, without their tests; the licences lie in the folders named:\n\n" + "".join(
        f"{line}\n" for line in found
    )


def submit_files(site: Path) -> list[str]:
    """What palsub needs, relative to `site`: all modules that it may import, and the data beside them."""
    modules = imported(site, ["slurm_pal.cli.palsub", *policies(site)])
    folders = {path.parent for path in modules}
    data = {path for folder in folders for path in folder.iterdir() if path.is_file() and path.suffix != ".py"}
    data |= {path for path in (site / "slurm_pal/etc/recipes.d").rglob("*") if path.is_file()}
    code = {path for module in modules for path in (module, *(module.parent / "__pycache__").glob(f"{module.stem}.*"))}
    others = {path for top in site.iterdir() if top.name.lower().startswith(PURE.lower()) for path in files(top)}
    return sorted(str(path.relative_to(site)) for path in code | data | others)


def policies(site: Path) -> list[str]:
    """The modules that palsub imports by a name in a setting."""
    names = "from slurm_pal.placement import POLICIES; print(*(one.module for one in POLICIES.values()))"
    start = f"import sys; sys.path.append({str(site)!r}); {names}"
    return [f"slurm_pal.placement.{name}" for name in said(sys.executable, "-I", "-S", "-B", "-c", start).split()]


def imported(site: Path, names: Iterable[str]) -> set[Path]:
    """The files of these modules and of all of ours that they import, at once or later.

    Raises RuntimeError where one needs a package that a login node does not get.
    """
    found: set[Path] = set()
    left = [*names]
    while left:
        name = left.pop()
        path = module_path(site, name)
        top = name.partition(".")[0]
        if path is None:
            if top not in sys.stdlib_module_names and top != PURE:
                raise RuntimeError(f"palsub would need {name}, which is not in the standard library")
        elif path not in found:
            found.add(path)
            left += [name.rpartition(".")[0]] if "." in name else []
            left += imports(site, ast.parse(path.read_text("utf-8")))
    return found


def imports(site: Path, node: ast.AST) -> Iterator[str]:
    """What a piece of code imports; not what only type checkers see."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.module or ""
        yield from (n for alias in node.names if module_path(site, n := f"{node.module}.{alias.name}"))
    for child in ast.iter_child_nodes(node):
        yield from imports(site, child)


def module_path(site: Path, name: str) -> Path | None:
    """The file of a module of ours; None for others, and for what is no module."""
    base = site.joinpath(*name.split("."))
    ours = name.partition(".")[0] == "slurm_pal"
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if ours and path.is_file()), None)


def package_version(version: str) -> str:
    """A version of Python's, such that dpkg and rpm order it alike: dev, a, b, rc, then the release."""
    return re.sub(r"(?<=\d)(a|b|rc)(?=\d)", r"~\1", version).replace(".dev", "~~dev")


def refuse_paths(root: Path, places: list[str]) -> None:
    """Raise RuntimeError where a file names a folder of this machine."""
    words = [place.encode() for place in places]
    for path in files(root):
        if not path.is_symlink() and any(word in path.read_bytes() for word in words):
            raise RuntimeError(f"{path.relative_to(root)} names a folder of this machine")


def drop_empty(root: Path) -> None:
    """Remove the folders whose files went to the other package."""
    for folder, _, _ in os.walk(root, topdown=False):
        if not os.listdir(folder):
            os.rmdir(folder)


def settle(root: Path) -> None:
    """The same modes and times, whoever builds it and when."""
    epoch_s = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            runs = path.is_dir() or path.parent.name == "bin" or path.name == "postinst"
            path.chmod(0o755 if runs else 0o644)
        os.utime(path, (epoch_s, epoch_s), follow_symlinks=False)


def files(root: Path) -> Iterator[Path]:
    """All files and links below a folder."""
    return (path for path in root.rglob("*") if path.is_symlink() or path.is_file())


def pack(text: bytes, path: Path) -> None:
    """Write a text as Debian has it: compressed, without name and time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, 9, mtime=0))


def run(*argv: str) -> None:
    """Run a program that says nothing of use. Raises CalledProcessError."""
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONHASHSEED": "0"})


def said(*argv: str, environ: dict[str, str] | None = None) -> str:
    """What a program prints."""
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env=environ).stdout.strip()


def main(build: Callable[[Path], Iterable[Path]]) -> int:
    """Build both packages into dist, and name them; the exit code."""
    try:
        for path in build(Path("dist")):
            print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 1
    return 0
