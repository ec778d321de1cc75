# SPDX-License-Identifier: MIT
"""docs/tutorial.md and README's lines to try by hand, typed as they stand; JSON of that lab against docs/json.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..doubles.json_page import differences, read
from ..doubles.page_commands import ROOT, blocks
from .conftest import skip_without_slurm

pytestmark = pytest.mark.real_slurm
BIN = Path(sys.executable).parent
TIMEOUT_S = 300.0
SET_UP = ("make setup", ". .venv/bin/activate")
"""Lines that are done already."""
FAST = {"SLURM_PAL_PROFILE_MAX_PARALLEL": "8", "SLURM_PAL_PROFILE_SPARE_NODES": "0"}
"""A sweep takes all nodes at once."""
SCRIPT = "#!/bin/bash\n#SBATCH --gres=gpu:1 --time=10\ngmx mdrun -s topol.tpr -deffnm run -cpi\n"
PRINTED = (
    "pal gpus --json", "pal nodes --json", "pal top --json", "pal doctor --json", "pal report --json",
    "pal report --gpu n1:0 --json", "pal throughputs --json", "pal setup --dry-run --json", "pal admin status --json",
    "pal explain --last --json",
    "pal explain 1,2 --json", "pal whatif --exclude slow --json -- --gres=gpu:1 --wrap true",
    "pal why-slow $(squeue -h -t R -o %A | head -n 1) --json", "pal recipes --json",
    "pal recipes --check job.sh --json", "pal moves --json", "pal loans --json", "pal-rebalance --json",
    "pal-rebalance --once --act --keep-ticks ticks --json", "pal ticks ticks --json",
    "pal ticks ticks --at $(date +%FT%T) --json", "pal publish-table --json", "pal-profile plan --json",
    "pal-profile publish-scores --json", "pal-profile status --json", "pal-profile show n1 --json",
    "pal compare last-1 last --json", "pal lab status --json", "pal lab gpus --json",
    "srun --gres=gpu:1 pal lab work --class A --seconds 0.1 --json",
    "palsub --pal-dry-run --pal-json --pal-class A --gres=gpu:1 --pal-movable job.sh",
    "pal-profile bench --repeat 2 --bench hbm_triad --node n0 --gpu 0 --registry $EMU --json",
    "pal-profile selftest --node n0 --gpu 1 --registry $EMU --wall-scale 0.02 --json",
    "pal simulate --generate jobs=20,load=0.5 --cluster 2x4 --policy slurm,class-fit --seeds 2 --json",
    "pal trace generate -o made.csv jobs=5 && pal trace describe made.csv --json",
    "pal report --card card.json --card card.html && cat card.json",
)  # fmt: skip
"""What the lab of the tutorial is asked for."""
ELSEWHERE = {
    "pal.benchmarks/1", "pal.simulate-list/1",  # tests/unit/repository/test_json_page.py
    "pal.costs/1",  # accounting: rows there, too
    "pal.demo/1", "pal.trial/1", "pal.probe/1", "pal.observed/1", "pal.simulate-prices/1",  # their own tests
    "pal.simulate-unequal/1", "pal.simulate-loans/1", "pal.simulate-blox-pal/1", "pal.simulate-gavel/1",
}  # fmt: skip


class Reader:
    """Who types: a shell with a home of its own, which keeps its variables between the blocks."""

    def __init__(self, home: str) -> None:
        self.home = home
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "XDG_"))}
        own = {"HOME": home, "XDG_STATE_HOME": home, "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.env = kept | own | FAST

    def type(self, text: str) -> str:
        """Type lines one after the other; what they print. Each must succeed."""
        lines = "\n".join(line for line in text.splitlines() if not line.startswith(SET_UP))
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", f"{lines}\nenv -0 > {self.home}/env"], env=self.env, cwd=self.home,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (text, done.stdout, done.stderr)
        stored = Path(self.home, "env").read_text().rstrip("\0").split("\0")
        self.env = dict(variable.partition("=")[::2] for variable in stored)
        return done.stdout


@pytest.fixture
def reader() -> Iterator[Reader]:
    skip_without_slurm()
    home = tempfile.mkdtemp(prefix="pal")  # a short name: Slurm's sockets are in it
    one = Reader(home)
    try:
        yield one
    finally:
        subprocess.run([f"{BIN}/pal", "lab", "down"], env=one.env, capture_output=True, timeout=TIMEOUT_S, check=False)
        shutil.rmtree(home)


def typed(page: Path, heading: str = "") -> list[str]:
    """The sh blocks of a page, or of the part below a heading."""
    start = page.read_text().partition(heading)[0].count("\n") if heading else 0
    return [block.text for block in blocks(page) if block.kind == "sh" and block.line > start]


def test_the_tutorial_and_its_json(reader: Reader) -> None:
    first, *parts, down = typed(ROOT / "docs" / "tutorial.md")
    assert "make setup" in first and down == "pal lab down\n"
    seen = [reader.type(part) for part in parts]
    assert len(seen) == 6
    assert "8" in seen[0] and "outlier" in seen[1]
    assert "sent to n" in seen[2] and "It was given:" in seen[2]
    assert "yes: palsub chooses nodes" in seen[4] and Path(reader.home, "gpus.html").exists()
    assert "outlier n1:0" in seen[5] and list(Path(reader.home).glob("evidence-*.tar.gz"))

    Path(reader.home, "job.sh").write_text(SCRIPT)
    reader.env["EMU"] = f"{os.path.dirname(reader.env['SLURM_CONF'])}/emu_gpus.json"
    reader.type("sbatch -o /dev/null --gres=gpu:1 --wrap 'sleep 600'; sleep 2")
    schemas, found, wrong = read(), set[str](), []
    for line in PRINTED:
        body: dict[str, Any] = json.loads(reader.type(f"{line} || test $? = 1"))  # 1: something is not in force here
        found.add(body["schema"])
        wrong += differences(body, schemas)
    found.add(json.loads(reader.type("pal-profile run --yes --json -w n0"))["schema"])
    assert wrong == []
    assert found | ELSEWHERE == schemas.keys() and not found & ELSEWHERE
    reader.type(down)


def test_the_readme_by_hand(reader: Reader) -> None:
    by_hand = typed(ROOT / "README.md", "\nTry it by hand")[0]
    assert by_hand.startswith(". .venv/bin/activate\n") and by_hand.endswith("pal lab down\n")
    shown = reader.type(by_hand)
    assert "decision: " in shown and "Submitted batch job" in shown
