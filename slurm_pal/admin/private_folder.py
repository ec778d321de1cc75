# SPDX-License-Identifier: MIT
"""Make the programs below a prefix independent of their users' environment: for recipes of Spack and EasyBuild.

usage: python -m slurm_pal.admin.private_folder PREFIX

Run it once after `pip install --prefix PREFIX`, by the Python and with the module search path of that installation.
There each dependency has a prefix of its own, and an environment module tells Python by PYTHONPATH where they are; our
programs ignore that, since it is their user's. So PREFIX/libexec/slurm-pal gets the layout of a virtual environment
that knows all these places, and the programs in PREFIX/bin become links to it. No python3 comes into PREFIX/bin.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

NAME = "slurm-pal"
LINKED = ("slurm_pal", "ClusterShell")
"""What palsub imports: it starts without `site`, so without files that name further folders."""
SCRIPTS = ("palsub", "pal")
STARTED = {"pal-profile": "profile", "pal-rebalance": "rebalance"}
STARTER = """\
#!/bin/sh
# SPDX-License-Identifier: MIT
exec {python} -I -c 'import sys
from slurm_pal.cli.start import {function}
sys.argv[0] = "{program}"
sys.exit({function}())' "$@"
"""


def main(words: list[str]) -> int:
    """Do it, and say where; 2 for wrong words."""
    if len(words) != 1 or words[0].startswith("-"):
        print("usage: python -m slurm_pal.admin.private_folder PREFIX", file=sys.stderr)
        return 2
    try:
        print(make(Path(words[0]).absolute()))
    except (OSError, PackageNotFoundError) as error:
        print(f"private_folder: {error}", file=sys.stderr)
        return 1
    return 0


def make(prefix: Path) -> Path:
    """The private folder of an installation, made anew. Raises OSError, and PackageNotFoundError for a missing one."""
    home = prefix / "libexec" / NAME
    site = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    python = Path(getattr(sys, "_base_executable", sys.executable))
    places = folders(NAME)
    (home / "bin").mkdir(parents=True, exist_ok=True)
    site.mkdir(parents=True, exist_ok=True)
    link(home / "bin" / "python3", python)
    (home / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    (site / f"{NAME}.pth").write_text("".join(f"{place}\n" for place in places))
    for package in LINKED:
        link(site / package, next(place for place in places if (place / package).is_dir()) / package)
    for program in SCRIPTS:
        if not (prefix / "bin" / program).is_symlink():  # else it was moved by an earlier run
            os.replace(prefix / "bin" / program, home / "bin" / program)
    for program, function in STARTED.items():
        path = home / "bin" / program
        path.write_text(STARTER.format(python=shlex.quote(f"{home}/bin/python3"), program=program, function=function))
        path.chmod(0o755)
    for program in (*SCRIPTS, *STARTED):
        link(prefix / "bin" / program, Path("..", "libexec", NAME, "bin", program))
    return home


def folders(name: str) -> list[Path]:
    """The folders in which a package and all that it needs lie, as the running Python finds them, its own first.

    Raises PackageNotFoundError if it or one that it always needs is missing.
    """
    found: dict[Path, None] = {}
    seen: set[str] = set()
    left = [(name, True)]
    while left:
        name, needed = left.pop(0)
        if name in seen:
            continue
        try:
            told = distribution(name)
        except PackageNotFoundError:
            if needed:
                raise
            continue
        seen.add(name)
        found[Path(str(told.locate_file("")))] = None
        for requirement in told.requires or ():
            word = re.match(r"[\w.-]+", requirement)
            if word and "extra ==" not in requirement:
                left.append((word[0], ";" not in requirement))
    return [*found]


def link(path: Path, target: Path) -> None:
    """A link in place of what is there, at once."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    os.replace(new, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
