# SPDX-License-Identifier: MIT
"""A fit of Lightning that saves when the mover asks, and goes on from there.

palsub --pal-checkpoint=USR2 job.sh    # with: srun python3 lightning_fit.py
"""

import os
import sys
import time

import torch
from pytorch_lightning import LightningModule, Trainer

from slurm_pal.frameworks.lightning import LightningSaver

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
PAUSE_S = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        time.sleep(PAUSE_S)
        loss = (self.layer(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
        if self.global_rank == 0:
            with open("steps.csv", "a") as rows:
                rows.write(f"{self.global_step},{loss.item():.9f}\n")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    torch.manual_seed(0)
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    data = torch.utils.data.DataLoader(torch.randn(8 * STEPS * tasks, 16), batch_size=8)
    saver = LightningSaver("last.ckpt")
    trainer = Trainer(
        max_steps=STEPS, accelerator="cpu", devices=tasks, strategy="ddp" if tasks > 1 else "auto", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[saver],
    )  # fmt: skip
    if trainer.is_global_zero:
        print(f"resume {saver.resume}", flush=True)
    trainer.fit(Net(), data, ckpt_path=saver.resume)
    if trainer.is_global_zero:
        print(f"ended at {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
