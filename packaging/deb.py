#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Build the Debian packages slurm-pal and slurm-pal-submit into dist/, for the Debian release of this machine.

usage: .venv/bin/python packaging/deb.py      (make deb), at the top of the tree, with the man pages in docs/_build/man

What is in them: content.py.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from content import MINOR, SUBMIT, SUMMARY, WHOLE, files, filled, main, package_version, run, said, settle

PYTHON = "/usr/bin/python3"
ZSH = "usr/share/zsh/vendor-completions/_{}"
TRIGGERS = f"interest-noawait /usr/bin/python{MINOR}\n"


def build(into: Path) -> list[Path]:
    """Both packages, as files in `into`."""
    from slurm_pal import __version__

    made = []
    into.mkdir(exist_ok=True)
    with filled(PYTHON, ZSH) as roots:
        for root in roots:
            architecture = "all" if root.name == SUBMIT else said("dpkg", "--print-architecture")
            size_kib = sum((path.lstat().st_size + 1023) // 1024 for path in files(root))
            (root / "DEBIAN").mkdir()
            (root / "DEBIAN" / "control").write_text(control(root.name, __version__, architecture, size_kib))
            if root.name == SUBMIT:
                shutil.copy("packaging/postinst.sh", root / "DEBIAN" / "postinst")
                (root / "DEBIAN" / "triggers").write_text(TRIGGERS)
            settle(root)
            deb = into / f"{root.name}_{package_version(__version__)}_{architecture}.deb"
            run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), f"{deb}.new")
            os.replace(f"{deb}.new", deb)
            made.append(deb)
    return made


def control(package: str, version: str, architecture: str, size_kib: int) -> str:
    """The fields of a package."""
    first, second = map(int, MINOR.split("."))
    depends = [f"python3 (>= {MINOR}~)", f"python3 (<< {first}.{second + 1}~)"]
    if package == WHOLE:
        depends = [f"{SUBMIT} (= {package_version(version)})", *depends, "libc6", "libgcc-s1", "libstdc++6"]
    summary, text = SUMMARY[package]
    fields = {
        "Package": package,
        "Version": package_version(version),
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


if __name__ == "__main__":
    sys.exit(main(build))
