# SPDX-License-Identifier: MIT
"""A job of submitit that saves when the mover asks, and goes on from there: python3 submitit_jobs.py STEPS PAUSE_S."""

import os
import sys
import time

import submitit

from slurm_pal.frameworks.submitit import movable


class Count:
    """Writes a line for each step."""

    def __init__(self, step: int = 0) -> None:
        self.step = step

    def __call__(self, steps: int, pause_s: float) -> int:
        with open("steps.csv", "a") as rows:
            rows.write(f"run {os.environ.get('SLURM_RESTART_COUNT', '0')} {self.step}\n")
        while self.step < steps:
            time.sleep(pause_s)
            with open("steps.csv", "a") as rows:
                rows.write(f"step {self.step}\n")
            self.step += 1
        return self.step

    def checkpoint(self, steps: int, pause_s: float) -> submitit.helpers.DelayedSubmission:
        return submitit.helpers.DelayedSubmission(Count(self.step), steps, pause_s)


def main() -> None:
    executor = movable(submitit.AutoExecutor("jobs", cluster="slurm"))
    executor.update_parameters(gpus_per_node=1, timeout_min=60, slurm_wckey="")
    job = executor.submit(Count(), int(sys.argv[1]), float(sys.argv[2]))
    print(job.job_id)


if __name__ == "__main__":
    main()
