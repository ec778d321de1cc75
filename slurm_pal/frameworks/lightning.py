# SPDX-License-Identifier: MIT
"""A callback of Lightning that saves when the mover asks.

`saver = LightningSaver("run/last.ckpt")`, then `Trainer(callbacks=[saver]).fit(model, ckpt_path=saver.resume)`.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
from collections.abc import Iterable

from slurm_pal.frameworks.saver import SIGNALS, Saver

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback, LightningModule, Trainer
    except ImportError:
        from pytorch_lightning import Callback, LightningModule, Trainer


class LightningSaver(Callback):
    """Saves to `path`, which all nodes see. Lightning's own requeue at the time limit stays as it is.

    Lightning answers SIGUSR1 by a checkpoint and a requeue of its own, unless a handler stands there when fit begins.
    So only SIGUSR2 is taken before that; `signals=("USR1",)` takes the place of that requeue.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, signals: Iterable[str] = ("USR2",), every_steps: int = 1
    ) -> None:
        self._path = os.fspath(path)
        self._saver = Saver(signals=signals, every_steps=every_steps)
        self._total: int | None = None

    @property
    def resume(self) -> str | None:
        """The last checkpoint, for `ckpt_path`; None in a first run."""
        return next((path for path in (self._path, f"{self._path}.old") if os.path.exists(path)), None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning has its handlers now: a signal that is still free would end the job."""
        self._saver.take(SIGNALS)
        steps = trainer.estimated_stepping_batches
        self._total = int(steps) if math.isfinite(steps) else None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        if not self._saver.due(trainer.global_step, self._total):
            return
        new, old = f"{self._path}.new", f"{self._path}.old"
        if trainer.is_global_zero:
            shutil.rmtree(new, ignore_errors=True)  # of a save that was killed
        trainer.strategy.barrier()
        trainer.save_checkpoint(new)  # by all ranks; a folder where the strategy shards it
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            if os.path.isdir(self._path):
                shutil.rmtree(old, ignore_errors=True)
                os.rename(self._path, old)
            os.replace(new, self._path)
            with contextlib.suppress(OSError):
                shutil.rmtree(old)
        self._saver.done()
