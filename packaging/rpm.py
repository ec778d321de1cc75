#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Build the RPM packages slurm-pal and slurm-pal-submit into dist/, for the machine type and minor Python of this one.

usage: .venv/bin/python packaging/rpm.py      (make rpm), at the top of the tree, with the man pages in docs/_build/man

What is in them: content.py. They need /usr/bin/python3.N, a name that distributions keep beside their own python3, and
the C library of the machine where they were built, or a newer one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from content import HOME, MINOR, SUBMIT, SUMMARY, WHOLE, files, filled, main, package_version

PYTHON = f"/usr/bin/python{MINOR}"
ZSH = "usr/share/zsh/site-functions/_{}"
COMMON = ("usr", "usr/bin", "usr/lib", "usr/share", "usr/share/doc", "usr/share/man")
"""Folders of every system: packages do not own them."""


def build(into: Path) -> list[Path]:
    """Both packages, as files in `into`."""
    from slurm_pal import __version__

    if not shutil.which("rpmbuild"):
        raise RuntimeError("there is no rpmbuild here: apt-get install rpm, or dnf install rpm-build")
    into.mkdir(exist_ok=True)
    with filled(PYTHON, ZSH) as roots, tempfile.TemporaryDirectory(prefix="pal-rpm") as folder:
        top = Path(folder)
        for name in ("BUILD", "RPMS"):
            (top / name).mkdir()
        shutil.copy("packaging/postinst.sh", top / "BUILD")
        for root in roots:
            (top / "BUILD" / f"{root.name}.files").write_text("".join(f"{line}\n" for line in listed(root)))
            lines = SUMMARY[root.name][1].splitlines()
            (top / "BUILD" / f"{root.name}.text").write_text("".join(f"{line.strip()}\n" for line in lines))
        values = {
            "_topdir": folder,
            "_builddir": f"{folder}/BUILD",
            "pal_home": str(HOME),
            "pal_libraries": "|".join(re.escape(name) for name in sorted(libraries(roots[1]))),
            "pal_python": PYTHON,
            "pal_roots": str(roots[0].parent),
            "pal_submit": SUMMARY[SUBMIT][0],
            "pal_version": package_version(__version__),
            "pal_whole": SUMMARY[WHOLE][0],
        }
        defined = [word for name, value in values.items() for word in ("--define", f"{name} {value}")]
        argv = ["rpmbuild", "--quiet", *defined, "-bb", "packaging/slurm-pal.spec"]
        done = subprocess.run(argv, capture_output=True, text=True)  # it warns of each link from / of ours
        if done.returncode:
            raise RuntimeError(f"rpmbuild failed:\n{done.stdout}{done.stderr}")
        made = []
        for path in sorted((top / "RPMS").rglob("*.rpm")):
            shutil.copyfile(path, into / f"{path.name}.new")
            os.replace(into / f"{path.name}.new", into / path.name)
            made.append(into / path.name)
    return made


def libraries(root: Path) -> set[str]:
    """The names of the shared libraries that a package brings along for itself."""
    return {path.name for path in files(root) if path.name.startswith("lib") and ".so" in path.name}


def listed(root: Path) -> list[str]:
    """The list of a package's files, as %files has it: with the folders that are to go when it is removed.

    Raises RuntimeError where rpm would read a name as a pattern or a macro.
    """
    lines = ["%defattr(-,root,root,-)"]
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if any(sign in name for sign in '"%*?[]{}\\\n'):
            raise RuntimeError(f"rpm would not take the name {name!r} as it is")
        mark = ""
        if path.is_dir() and not path.is_symlink():
            if name in COMMON or name.startswith("usr/share/man/"):
                continue
            mark = "%dir "
        elif name == str(HOME / "bin" / "palsub"):
            mark = "%verify(not mtime) "  # postinst.sh changes it
        elif name.endswith("/copyright"):
            mark = "%license "
        elif name.startswith("usr/share/doc/"):
            mark = "%doc "
        lines.append(f'{mark}"/{name}"')
    return lines


if __name__ == "__main__":
    sys.exit(main(build))
