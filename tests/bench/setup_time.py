# SPDX-License-Identifier: MIT
"""From nothing to a placed job by `pal setup`, and back: commands typed, seconds each, and what is left afterwards.

    python tests/bench/setup_time.py [--json]

Runs as root in the namespaces and on the lab of first_use.py: 8 x 4 emulated GPUs of the user slurm, in /etc/slurm.
Each line of COMMANDS is given to a shell as it stands. /etc, /usr/local and /var are listed (kind, mode, owner,
content) before `pal setup` and after `pal setup --undo --purge`. --prefix is there because for a lab setup puts nothing
into /usr/local by itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from first_use import USER, Site, in_namespaces

COMMANDS = (
    "python3 -m venv /opt/slurm-pal && /opt/slurm-pal/bin/pip install .",
    "/opt/slurm-pal/bin/pal setup --yes --prefix /usr/local",
    f"sudo -u {USER} pal-profile run --yes --budget 50",
    f"sudo -u {USER} palsub --parsable -o /dev/null -t 5 --pal-class A --gres=gpu:1 --wrap 'sleep 1'",
)
UNDO = ("/opt/slurm-pal/bin/pal setup --undo --yes", "/opt/slurm-pal/bin/pal setup --undo --purge --yes")
TREES = ("/etc", "/usr/local", "/var")
OTHERS = ("/var/log", "/var/tmp", "/var/cache")
"""Where other programs of the machine write meanwhile."""


def listing() -> dict[str, str]:
    """Path -> kind, mode, owner, and target or checksum."""
    found: dict[str, str] = {}
    for tree in TREES:
        for folder, names, files in os.walk(tree):
            names[:] = [name for name in names if os.path.join(folder, name) not in OTHERS]
            for path in (Path(folder, name) for name in (*names, *files)):
                try:
                    info = path.lstat()
                    text = os.readlink(path) if path.is_symlink() else ""
                    if path.is_file() and not path.is_symlink():
                        text = hashlib.sha256(path.read_bytes()).hexdigest()
                except FileNotFoundError:
                    continue
                found[str(path)] = f"{info.st_mode:o} {info.st_uid}:{info.st_gid} {text}"
    return found


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def inside(work: Path) -> None:
    site = Site(work)
    site.prepare()
    shutil.rmtree("/var/lib/slurm-pal", ignore_errors=True)  # in the overlay only: a site has none yet
    took: dict[str, float] = {}

    def typed(line: str) -> subprocess.CompletedProcess[str]:
        started = time.monotonic()
        done = site.shell(line)
        took[line] = round(time.monotonic() - started, 1)
        return done

    install, setup, sweep, job = COMMANDS
    typed(install)
    site.cluster()
    before = listing()
    typed(setup)
    written = differences(before, listing())
    typed(sweep)
    number = typed(job).stdout.strip()
    action, reason = site.decision(number)
    again = site.shell(f"{setup} --json")
    left = []
    for line in UNDO:
        typed(line)
        left.append(differences(before, listing()))
    site.shell(f"sudo -u {USER} /opt/slurm-pal/bin/pal lab down --dir {work}/home/lab")
    body = json.loads(again.stdout)
    result = {
        "lines_s": took, "written": written, "action": action, "reason": reason, "placing": body["placing"],
        "changed_again": len(body["changes"]), "left": left[0], "left_purged": left[1],
    }  # fmt: skip
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(Path(args.inside))
        return
    result = in_namespaces(__file__)
    if args.json:
        print(json.dumps(result))
        return
    lines, written, left, purged = (result[name] for name in ("lines_s", "written", "left", "left_purged"))
    assert isinstance(lines, dict) and isinstance(written, list) and isinstance(left, list) and isinstance(purged, list)
    for line, seconds in lines.items():
        print(f"{seconds:6.1f} s  {line}")
    total = sum(lines[line] for line in COMMANDS)
    print(f"commands typed: {len(COMMANDS)}, {total:.1f} s; files and folders written: {len(written)}")
    print(f"the job: {result['action']}; pal doctor places: {result['placing']}")
    print(f"changes by a second setup: {result['changed_again']}")
    folders = sorted({"/".join(path.split("/")[:4]) for path in left})
    print(f"left after --undo: {len(left)} ({', '.join(folders)})")
    print(f"left after --undo --purge: {len(purged)} {' '.join(purged)}")


if __name__ == "__main__":
    main()
