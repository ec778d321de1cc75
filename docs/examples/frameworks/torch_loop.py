# SPDX-License-Identifier: MIT
"""A loop of plain PyTorch that saves when the mover asks, and goes on from there: srun or torchrun starts its tasks.

    srun python3 torch_loop.py --steps 2000 --checkpoint last.pt

Task 0 writes a line `step,loss` for each step to --csv.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from slurm_pal.frameworks.saver import Saver

BATCH, WIDTH = 32, 16


def samples(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(1000 * step + rank)
    features = torch.randn(BATCH, WIDTH, generator=drawn)
    return features, torch.sin(features.sum(dim=1, keepdim=True))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=2000)
    options.add_argument("--checkpoint", default="last.pt", help="on a file system that all nodes see")
    options.add_argument("--csv", default="steps.csv")
    options.add_argument("--pause", type=float, default=0.0, help="seconds added to each step")
    given = options.parse_args()

    if "RANK" not in os.environ:  # srun, not torchrun
        os.environ |= {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": os.environ["SLURM_NTASKS"]}
        os.environ.setdefault("MASTER_ADDR", os.environ["SLURM_LAUNCH_NODE_IPADDR"])
        os.environ.setdefault("MASTER_PORT", str(20000 + int(os.environ["SLURM_JOB_ID"]) % 10000))
    torch.set_num_threads(1)
    saver = Saver()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
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
        print(f"from step {first}", flush=True)

    for step in range(first, given.steps):
        features, values = samples(step, rank)
        loss = torch.nn.functional.mse_loss(model(features), values)
        rule.zero_grad()
        loss.backward()
        rule.step()
        if rank == 0:
            with open(given.csv, "a") as rows:
                rows.write(f"{step},{loss.item():.9f}\n")
        if saver.due(step + 1, given.steps):
            if rank == 0:
                state = {"net": net.state_dict(), "rule": rule.state_dict(), "step": step + 1}
                torch.save(state, f"{given.checkpoint}.new")
                os.replace(f"{given.checkpoint}.new", given.checkpoint)  # never half written
                print(f"saved step {step + 1}", flush=True)
            saver.done()
        time.sleep(given.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
