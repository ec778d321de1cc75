# SPDX-License-Identifier: MIT
"""The ticks of a daemon that acts on a real Slurm, decided again from what it kept: the same lists, the same moves."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.lab.lab import Lab

from . import test_rebalance
from .test_rebalance import PAL, Site, stop

pytestmark = [pytest.mark.real_slurm, pytest.mark.long]

started = test_rebalance.started
site = test_rebalance.site

JOBS = int(os.environ.get("PAL_KEPT_JOBS", "24"))
APART_S = 1.2  # between two submissions
PACE = "#!/bin/bash\nfor k in 1 2 3; do {pal} progress $((100 * k)) 4000; sleep {nap}; done\n"
PLAIN = "#!/bin/bash\nsleep {nap}\n"


def ticks(site: Site, folder: Path, *words: str, seed: str = "random") -> subprocess.CompletedProcess[str]:
    """In a process of its own, with another order of sets and without Slurm."""
    env = {name: value for name, value in site.env.items() if "SLURM" not in name}
    env |= {"PYTHONHASHSEED": seed, "PATH": "/nonexistent"}
    return subprocess.run([*PAL, "ticks", str(folder), *words], env=env, capture_output=True, text=True, check=False)


def with_moves(site: Site) -> None:
    """Two jobs that may be moved start on the slow node, and the others become free."""
    for name in ("n1", "n2", "n3"):
        site.running(site.client.submit(["-o", "/dev/null", "-w", name, "--gres=gpu:2"], PLAIN.format(nap=12)))
    for _ in range(2):
        number = site.palsub("--gres=gpu:1", "--pal-movable=5", script=PLAIN.format(nap=40))
        assert site.running(number).nodes == ("n0",)
    site.wait(lambda: any(move.outcome for move in site.moves()))


def submit_all(site: Site) -> None:
    """Jobs of all kinds, faster than they end: some report their pace, some may be moved, some are not ours."""
    pal = f"'{sys.executable}' -P -c 'from slurm_pal.cli.start import main; main()'"
    for k in range(JOBS - 5):
        script = (PACE if k % 4 == 0 else PLAIN).format(pal=pal, nap=6 + 3 * (k % 4))
        if k % 6 == 5:
            site.client.submit(["-o", "/dev/null", "--gres=gpu:1", "-t", "2"], PLAIN.format(nap=12))
        else:
            gpus = ["--gres=gpu:2"] if k % 8 == 7 else ["--gres=gpu:1"]
            site.palsub(*gpus, *(["--pal-movable=5"] if k % 2 == 0 else []), script=script)
        time.sleep(APART_S)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "kept"


def test_the_ticks_of_a_live_run_are_decided_again(site: Site, folder: Path, started: Lab) -> None:
    with site.daemon(keep_ticks=folder) as daemon:
        with_moves(site)
        submit_all(site)
        site.wait(lambda: not any(state in ("PENDING", "RUNNING") for state, _ in site.client.job_states().values()))
        stop(daemon)
    live = site.ticks()
    assert "kept" not in "".join(str(tick["trouble"]) for tick in live), site.said()
    done = ticks(site, folder, "--json")
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    found = json.loads(done.stdout)
    print(ticks(site, folder).stdout, len(live), sum(path.stat().st_size for path in folder.iterdir()))
    assert found["identical"] and found["total"]["ticks"] == len(live) > 20
    assert found["total"]["moves"] > 0 and found["total"]["changes"] > 2
    # What it decided again is what the daemon has printed, and done.
    assert [one["at_s"] for one in found["ticks"]] == [tick["at_s"] for tick in live]
    assert [one["moves"] for one in found["ticks"]] == [len(tick["moves"]) for tick in live]  # type: ignore[arg-type]
    assert [one["wishes"] for one in found["ticks"]] == [len(tick["retarget"]) for tick in live]  # type: ignore[arg-type]
    moved = next(tick for tick in live if tick["moves"])
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(float(str(moved["at_s"])) + 1))
    shown = json.loads(ticks(site, folder, "--at", at, "--json").stdout)
    assert shown["decided"]["at_s"] in [tick["at_s"] for tick in live]
    _a_changed_one_is_found(site, folder, found)


def _a_changed_one_is_found(site: Site, folder: Path, found: dict[str, list[dict[str, int]]]) -> None:
    number = next(one["number"] for one in found["ticks"] if one["moves"])
    path = folder / f"tick-{number:010d}.gz"
    head, body = gzip.decompress(path.read_bytes()).decode().splitlines()
    decided = json.loads(body)
    decided["given"]["now_s"]["own"]["value"] -= 7200.0  # two hours earlier none of these jobs was there
    path.write_bytes(gzip.compress(f"{head}\n{json.dumps(decided)}\n".encode()))
    done = ticks(site, folder)
    assert done.returncode == Exit.FAILED and f"\ntick {number} at " in done.stdout and " differs:\n" in done.stdout
    assert done.stdout.count(" differs:") == 1 and done.stderr == ""
