# SPDX-License-Identifier: MIT
"""Training by the Hugging Face Trainer that saves when the mover asks, and goes on from there."""

import os
import sys
import time

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from slurm_pal.frameworks.trainer import TrainerSaver

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
PAUSE_S = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(PAUSE_S)
        loss = (self.layer(features) - labels).square().mean()
        with open("steps.csv", "a") as rows:
            rows.write(f"{loss.item():.9f}\n")
        return {"loss": loss}


def main() -> None:
    torch.manual_seed(0)
    features = torch.randn(8 * STEPS, 16)
    data = [{"features": row, "labels": row.sum().reshape(1)} for row in features]
    asked = TrainingArguments(
        "run", max_steps=STEPS, per_device_train_batch_size=8, use_cpu=True, save_strategy="no", logging_strategy="no",
        report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(Net(), asked, train_dataset=data, callbacks=[TrainerSaver()])
    last = get_last_checkpoint("run") if os.path.isdir("run") else None
    print(f"resume {last}", flush=True)
    trainer.train(resume_from_checkpoint=last)
    print(f"ended at {trainer.state.global_step}", flush=True)


if __name__ == "__main__":
    main()
