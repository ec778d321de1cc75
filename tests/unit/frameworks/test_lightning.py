# SPDX-License-Identifier: MIT
"""Whose SIGUSR1 is, beside Lightning's real signal connector; by a Python that has Lightning (make test-frameworks)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("PAL_FRAMEWORKS_PYTHON", str(ROOT / ".venv" / "frameworks" / "bin" / "python"))

pytestmark = pytest.mark.skipif(not os.path.exists(PYTHON), reason=f"no frameworks at {PYTHON}: make test-frameworks")

CODE = """
import signal, sys
from pytorch_lightning import Trainer
from pytorch_lightning.plugins.environments import SLURMEnvironment
from slurm_pal.frameworks.lightning import LightningSaver

signals, requeue = sys.argv[1].split(), sys.argv[2] == "requeue"
saver = LightningSaver("none.ckpt", signals=signals)
trainer = Trainer(plugins=[SLURMEnvironment(auto_requeue=requeue)], callbacks=[saver], accelerator="cpu", devices=1,
                  logger=False, enable_checkpointing=False, max_steps=1)
trainer._signal_connector.register_signal_handlers()
saver._saver.take(("USR1", "USR2"))  # as in on_train_start
def whose(number):
    return "ours" if signal.getsignal(number) == saver._saver._hear else "Lightning's"
print(whose(signal.SIGUSR1), whose(signal.SIGUSR2))
"""


@pytest.mark.parametrize(
    ("signals", "requeue", "whose"),
    [
        ("USR2", "requeue", "Lightning's ours"),
        ("USR1", "requeue", "ours ours"),
        ("USR2", "no", "ours ours"),
    ],
)
def test_lightning_keeps_its_own_signal_unless_it_is_taken_before(
    signals: str, requeue: str, whose: str, tmp_path: Path
) -> None:
    env = {
        "PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "1",
        "SLURM_NTASKS_PER_NODE": "1", "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": "0",
        "TMPDIR": str(tmp_path),  # of Torch's compiler
    }  # fmt: skip
    done = subprocess.run(
        [PYTHON, "-P", "-c", CODE, signals, requeue], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == [whose], done.stderr
