# SPDX-License-Identifier: MIT
"""What a site gets that installs by hand as docs/admin.md has it: how many of 50 mixed jobs palsub places.

    python tests/bench/first_use.py [--jobs 50] [--seed 1] [--watch never] [--json]

Runs as root in namespaces of its own, in which /opt, /usr/local and /var/lib are overlays and /etc/slurm is the
configuration of a fresh lab of 8 x 4 emulated GPUs that the user slurm runs; nothing stays on the machine.
The lines are read from the page and given to a shell, word for word, in a copy of the committed tree. `sudo -u slurm`
is a script of two lines, since the machine may have no sudo. A lab runs jobs of its own user only, so slurm submits.
A job counts as placed if palsub named nodes, excluded some or asked for a preference.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pwd
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
USER = "slurm"
OVERLAYS = ("/opt", "/usr/local", "/var/lib")
SPACING_S = 1.0
MIX = (
    (18, "--gres=gpu:1"),
    (10, "--gres=gpu:2"),
    (6, "--gpus-per-node=4"),
    (4, "--gpus=1"),
    (3, "--gres=gpu:4 -N2"),
    (3, "--gpus=2"),
    (2, "--gpus-per-task=1 -n2"),
    (2, "--array=0-2 --gres=gpu:1"),
    (1, "--gres=gpu:4 --exclusive"),
    (1, "-n2"),
)
"""Weights and requests: of 50 jobs 49 ask for GPUs, two of them are arrays, which are never pinned."""


def installing_lines() -> list[str]:
    """The lines of installation, and the one that puts palsub into PATH."""
    text = (ROOT / "docs/admin.md").read_text().partition("\n## By hand")[2]
    block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    link = re.search(r"`(ln -s [^`]*palsub[^`]*)`", text)
    assert block and link
    return [*block[1].splitlines(), link[1]]


def jobs(seed: int, count: int) -> list[tuple[str, str, int]]:
    """Request, class ("" for none stated) and seconds of each job."""
    rng = random.Random(seed)
    requests = [request for weight, request in MIX for _ in range(weight)]
    rng.shuffle(requests)
    return [
        (requests[k % len(requests)], rng.choice(["A", "A", "B", "C", ""]), rng.randint(5, 12)) for k in range(count)
    ]


class Site:
    """The machine as its admins and users see it, inside the namespaces."""

    def __init__(self, work: Path) -> None:
        self.work, self.source = work, work / "slurm-pal"
        self.env = {
            "PATH": f"{work}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root", "SLURM_CONF": "/etc/slurm/slurm.conf", "LANG": "C.UTF-8",
        }  # fmt: skip
        self.env |= {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.lower().endswith("_proxy")}

    def shell(self, line: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.source, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            sys.exit(f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def prepare(self) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "none", self.work], check=True)
        self.work.chmod(0o755)
        for place in OVERLAYS:
            upper, scratch = self.work / f"upper{place}", self.work / f"scratch{place}"
            upper.mkdir(parents=True)
            scratch.mkdir(parents=True)
            upper.chmod(0o755)
            words = f"lowerdir={place},upperdir={upper},workdir={scratch}"
            subprocess.run(["mount", "-t", "overlay", "overlay", "-o", words, place], check=True)
        self.source.mkdir()
        (self.work / "bin").mkdir()
        home = self.work / "home"
        home.mkdir()
        entry = pwd.getpwnam(USER)
        os.chown(home, entry.pw_uid, entry.pw_gid)
        sudo = self.work / "bin" / "sudo"
        as_user = 'setpriv --reuid="$2" --regid="$2" --init-groups'
        sudo.write_text(f'#!/bin/sh\n[ "$1" = -u ] && exec {as_user} env HOME={home} USER="$2" "${{@:3}}"\n')
        sudo.write_text(sudo.read_text().replace("#!/bin/sh", "#!/bin/bash"))
        sudo.chmod(0o755)
        archive = subprocess.run(["git", "-C", ROOT, "archive", "HEAD"], capture_output=True, check=True).stdout
        subprocess.run(["tar", "x", "-C", self.source], input=archive, check=True)

    def cluster(self) -> None:
        """The Slurm that the site has already."""
        self.shell(f"sudo -u {USER} /opt/slurm-pal/bin/pal lab up --dir {self.work}/home/lab")
        subprocess.run(["mount", "--bind", f"{self.work}/home/lab/etc", "/etc/slurm"], check=True)
        os.unlink("/etc/slurm/pal.toml")  # a site has none yet

    def decision(self, job_id: str) -> tuple[str, str]:
        (record,) = (self.work / "home").rglob(f"decisions/*/{job_id}.json")
        made = json.loads(record.read_text())
        return made["action"], made["reason"]


def inside(work: Path, args: argparse.Namespace) -> None:
    site = Site(work)
    site.prepare()
    took: dict[str, float] = {}
    first, *rest = installing_lines()
    for line in (first, *rest):
        started = time.monotonic()
        doctor = "pal doctor" in line  # says what is still missing
        done = site.shell(line, check=not doctor)
        took[line.partition("#")[0].strip()] = round(time.monotonic() - started, 1)
        if doctor and done.returncode != 1:
            sys.exit(f"pal doctor found nothing missing before the first sweep:\n{done.stdout}")
        if line is first:
            site.cluster()
    if args.watch:
        site.env["SLURM_PAL_SUBMIT_WATCH"] = args.watch
    healthy = site.shell(f"sudo -u {USER} /opt/slurm-pal/bin/pal doctor", check=False)
    started, found = time.monotonic(), []
    for number, (request, sensitivity, seconds) in enumerate(jobs(args.seed, args.jobs)):
        time.sleep(max(0.0, started + number * SPACING_S - time.monotonic()))
        stated = f"--pal-class={sensitivity}" if sensitivity else ""
        words = f"palsub --parsable -o /dev/null -t 30 {stated} {request} --wrap 'sleep {seconds}'"
        done = site.shell(f"sudo -u {USER} {words}")
        found.append((request, *site.decision(done.stdout.strip()), done.stderr))
    waits = site.shell(f"sudo -u {USER} squeue -h -t PD -o %r").stdout.split()
    site.shell(f"sudo -u {USER} /opt/slurm-pal/bin/pal lab down --dir {work}/home/lab")
    print(json.dumps({"lines_s": took, "doctor": healthy.returncode, "jobs": found, "waiting": waits}))


def in_namespaces(program: str, *words: str) -> dict[str, object]:
    """What `program --inside DIR words` prints last, as JSON, in namespaces of its own, where DIR is empty."""
    if os.geteuid() != 0:
        sys.exit(f"{program} needs root for its namespaces")
    with tempfile.TemporaryDirectory(prefix="pal") as work:
        own = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, program]
        done = subprocess.run([*own, "--inside", work, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def show(result: dict[str, object]) -> None:
    rows = result["jobs"]
    assert isinstance(rows, list)
    placed = [row for row in rows if row[1] != "none"]
    print(f"pal doctor after the last line: exit code {result['doctor']}")
    print(f"placed: {len(placed)} of {len(rows)} jobs")
    for action, count in collections.Counter(row[1] for row in placed).most_common():
        print(f"  {count:3} {action}")
    for why, count in collections.Counter(row[2] for row in rows if row[1] == "none").most_common():
        print(f"  {count:3} {why}")
    said = collections.Counter(row[3].strip() for row in rows if row[3])
    for text, count in said.items():
        print(f"on stderr of {count}: {text}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--watch", default="", help="submit.watch; default: as installed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(Path(args.inside), args)
        return
    result = in_namespaces(__file__, "--jobs", str(args.jobs), "--seed", str(args.seed), "--watch", args.watch)
    print(json.dumps(result)) if args.json else show(result)


if __name__ == "__main__":
    main()
