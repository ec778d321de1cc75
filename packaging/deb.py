#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Build the Debian packages slurm-pal and slurm-pal-submit into dist/, for the Debian release of this machine.

usage: .venv/bin/python packaging/deb.py      (make deb), at the top of the tree, with the man pages in docs/_build/man

Both fill one private folder, /usr/lib/slurm-pal, with the layout of a virtual environment whose Python is Debian's own:
no package of Debian or of the site changes what is imported there. slurm-pal-submit has the files that palsub needs,
slurm-pal all others. Neither owns a file of /etc or /var, and neither starts anything.
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
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path

DEBIAN_PYTHON = "/usr/bin/python3"
HOME = Path("usr/lib/slurm-pal")
SUBMIT, WHOLE = "slurm-pal-submit", "slurm-pal"
PROGRAMS = ("palsub", "pal", "pal-profile", "pal-rebalance")
PURE = "ClusterShell"
"""The one package that palsub imports beside the standard library: pure Python, for lists of several nodes."""
MAN = {SUBMIT: ("palsub.1", "pal.toml.5"), WHOLE: ("pal.1", "pal-profile.1", "pal-rebalance.1", "pal-trial.1")}
TRIGGERS = "interest-noawait /usr/bin/python{}\n"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/{}",
    "zsh": "usr/share/zsh/vendor-completions/_{}",
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


def main() -> int:
    """Build both."""
    try:
        for path in build(Path("dist")):
            print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"deb.py: {error}", file=sys.stderr)
        return 1
    return 0


def build(into: Path) -> list[Path]:
    """Both packages, as files in `into`."""
    minor = said(DEBIAN_PYTHON, "-I", "-c", "import sys; print(*sys.version_info[:2], sep='.')")
    if minor != f"{sys.version_info[0]}.{sys.version_info[1]}":
        raise RuntimeError(
            f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}, {DEBIAN_PYTHON} is {minor}, and "
            f"packages are for the latter: make clean, then make deb PYTHON={DEBIAN_PYTHON}"
        )
    os.umask(0o022)
    epoch_s = int(os.environ.get("SOURCE_DATE_EPOCH") or said("git", "log", "-1", "--format=%ct"))
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch_s)
    from slurm_pal import __version__

    with tempfile.TemporaryDirectory(prefix="pal-deb") as folder:
        whole, submit = Path(folder, WHOLE), Path(folder, SUBMIT)
        install(whole, minor)
        site = whole / HOME / "lib" / f"python{minor}" / "site-packages"
        palsub = [HOME / "bin" / "python3", HOME / "bin" / "palsub", HOME / "pyvenv.cfg", Path("usr/bin/palsub")]
        for name in [*(str(site.relative_to(whole) / name) for name in submit_files(site)), *map(str, palsub)]:
            (submit / name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(whole / name, submit / name)
        made = []
        into.mkdir(exist_ok=True)
        for root in (submit, whole):
            share(root, minor)
            refuse_paths(root, [folder, os.getcwd(), sys.prefix])
            architecture = "all" if root is submit else said("dpkg", "--print-architecture")
            drop_empty(root)
            size_kib = sum((path.lstat().st_size + 1023) // 1024 for path in files(root))
            (root / "DEBIAN").mkdir()
            (root / "DEBIAN" / "control").write_text(control(root.name, __version__, architecture, minor, size_kib))
            if root is submit:
                shutil.copy("packaging/postinst.sh", root / "DEBIAN" / "postinst")
                (root / "DEBIAN" / "triggers").write_text(TRIGGERS.format(minor))
            settle(root, epoch_s)
            deb = into / f"{root.name}_{debian_version(__version__)}_{architecture}.deb"
            run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), f"{deb}.new")
            os.replace(f"{deb}.new", deb)
            made.append(deb)
    return made


def install(root: Path, minor: str) -> None:
    """slurm-pal and the locked versions of what it needs, below `root`."""
    home = root / HOME
    site = home / "lib" / f"python{minor}" / "site-packages"
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
        DEBIAN_PYTHON, "-I", "-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash",
        "-s", str(root), "-p", "/", str(site),
    )  # fmt: skip
    (home / "bin").mkdir()
    (home / "bin" / "python3").symlink_to(DEBIAN_PYTHON)
    (home / "pyvenv.cfg").write_text(f"home = {Path(DEBIAN_PYTHON).parent}\ninclude-system-site-packages = false\n")
    shutil.copy("bin/palsub", home / "bin" / "palsub")
    (home / "bin" / "pal").symlink_to("palsub")
    for function in ("profile", "rebalance"):
        path = home / "bin" / f"pal-{function}"
        path.write_text(STARTER.format(home=HOME, function=function))
        path.chmod(0o755)
    (root / "usr/bin").mkdir()
    for program in PROGRAMS:
        (root / "usr/bin" / program).symlink_to(f"../lib/slurm-pal/bin/{program}")
    complete(root)


def complete(root: Path) -> None:
    """Shell completions, as click writes them: palsub is not one of its programs."""
    for program in PROGRAMS[1:]:
        for shell, place in COMPLETIONS.items():
            path = root / place.format(program)
            path.parent.mkdir(parents=True, exist_ok=True)
            variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
            argv = [str(Path(sys.executable).parent / program)]
            path.write_text(said(*argv, environ=os.environ | {variable: f"{shell}_source"}) + "\n")


def share(root: Path, minor: str) -> None:
    """Man pages, licences and examples of one package."""
    site = HOME / "lib" / f"python{minor}" / "site-packages"
    doc = root / "usr/share/doc" / root.name
    doc.mkdir(parents=True)
    (doc / "copyright").write_text(licences(root / site, f"/{site}"))
    pack(Path("CHANGELOG.md").read_bytes(), doc / "changelog.gz")
    for page in MAN[root.name]:
        pack(Path("docs/_build/man", page).read_bytes(), root / "usr/share/man" / f"man{page[-1]}" / f"{page}.gz")
    if root.name == SUBMIT:
        (doc / "examples").mkdir()
        shutil.copy("etc/pal.toml", doc / "examples")
    else:
        (doc / "examples").symlink_to(f"/{site}/slurm_pal/etc")


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


def control(package: str, version: str, architecture: str, minor: str, size_kib: int) -> str:
    """The fields of a package."""
    first, second = map(int, minor.split("."))
    depends = [f"python3 (>= {minor}~)", f"python3 (<< {first}.{second + 1}~)"]
    if package == WHOLE:
        depends = [f"{SUBMIT} (= {debian_version(version)})", *depends, "libc6", "libgcc-s1", "libstdc++6"]
    summary, text = SUMMARY[package]
    fields = {
        "Package": package,
        "Version": debian_version(version),
        "Architecture": architecture,
        "Maintainer": "The slurm-pal developers",
        "Installed-Size": str(size_kib),
        "Depends": ", ".join(depends),
        "Recommends": "slurm-client",
        **({"Suggests": "lua5.1, munge, slurmctld, slurmd"} if package == WHOLE else {}),  # pal lab, pal simulate
        "Section": "admin",
        "Priority": "optional",
        "Description": f"{summary}\n{text}",
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def debian_version(version: str) -> str:
    """A version of Python's, such that Debian orders it alike: dev, a, b, rc, then the release."""
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


def settle(root: Path, epoch_s: int) -> None:
    """The same modes and times, whoever builds it and when."""
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


if __name__ == "__main__":
    sys.exit(main())
