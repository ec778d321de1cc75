# SPDX-License-Identifier: MIT
"""Training that may change its number of workers at any time: it goes on from its last checkpoint.

    torchrun ... train.py --steps 2000 --every 50 --checkpoint last.pt

The samples of a step depend on its number only, and the loss is the mean over all of them: so the training is the same
whatever the number of workers is. Rank 0 writes a line `step,workers,loss` for each step to --csv.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BATCH, WIDTH = 96, 16  # samples of a step, whatever the number of workers; features of a sample


def samples(step: int, rank: int, workers: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This worker's share of a step's samples: features, and the values to be learned."""
    drawn = torch.Generator().manual_seed(step)
    features = torch.randn(BATCH, WIDTH, generator=drawn)
    values = torch.sin(features.sum(dim=1, keepdim=True)) + features[:, :1] * features[:, 1:2]
    return features[rank::workers], values[rank::workers]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=2000)
    options.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    options.add_argument("--checkpoint", default="last.pt", help="on a file system that all nodes see")
    options.add_argument("--csv", default="steps.csv")
    options.add_argument("--backend", default="gloo")
    options.add_argument("--pause", type=float, default=0.0, help="seconds added to each step")
    given = options.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(given.backend)
    rank, workers = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    rule = torch.optim.Adam(net.parameters(), lr=3e-3)
    first = 0
    if os.path.exists(given.checkpoint):
        saved = torch.load(given.checkpoint, weights_only=True)
        net.load_state_dict(saved["net"])
        rule.load_state_dict(saved["rule"])
        first = saved["step"]
    model = DistributedDataParallel(net)
    if rank == 0:
        print(f"{workers} workers from step {first}", flush=True)

    for step in range(first, given.steps):
        features, values = samples(step, rank, workers)
        # DDP averages the gradients of the workers, whose shares need not be equal.
        loss = torch.nn.functional.mse_loss(model(features), values, reduction="sum") * workers / BATCH
        rule.zero_grad()
        loss.backward()
        rule.step()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            with open(given.csv, "a") as rows:
                rows.write(f"{step},{workers},{total.item() / workers:.6f}\n")
            if (step + 1) % given.every == 0 or step + 1 == given.steps:
                state = {"net": net.state_dict(), "rule": rule.state_dict(), "step": step + 1}
                torch.save(state, f"{given.checkpoint}.new")
                os.replace(f"{given.checkpoint}.new", given.checkpoint)  # never half written
        time.sleep(given.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
