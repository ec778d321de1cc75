# SPDX-License-Identifier: MIT
"""The job in the path of a control group: numbers and, from Slurm 26.05 on, SLUIDs."""

from __future__ import annotations

import pytest

from slurm_pal.base.job_folder import job_of

SLUID = "sEKNKTV3WPV500"


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n", "123"),
        ("9:devices:/slurm/uid_1000/job_456/step_batch\n1:name=systemd:/user.slice\n", "456"),
        ("5:memory:/slurm_n1/uid_0/job_8/step_batch\n", "8"),
        ("0::/system.slice/slurmstepd.scope/job_7\n", "7"),
        (f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0\n", SLUID),
        (f"0::/system.slice/n1_slurmstepd.scope/{SLUID}/step_extern\n", SLUID),
        (f"0::/gpu.slice/slurmstepd.scope/{SLUID}\n", SLUID),
        (f"9:cpu:/\n0::/system.slice/slurmstepd.scope/{SLUID}/step_batch/user/task_0\n", SLUID),
        ("0::/system.slice/slurmstepd.scope/system\n", ""),
        (f"0::/user.slice/{SLUID}/x\n", ""),
        (f"0::/system.slice/slurmstepd.scope/{SLUID[:-1]}I/x\n", ""),
        (f"0::/system.slice/slurmstepd.scope/{SLUID}0/x\n", ""),
        ("0::/user.slice/user-1000.slice/session-1.scope\n", ""),
        ("0::/containers/myjob_99/x\n", ""),
        ("0::/slurm/containers/job_99abc/x\n", ""),
        ("0::/containers/job_99/x\n", ""),
        ("0::/slurm/job_\u0663/x\n", ""),
        ("0::/\n", ""),
        ("", ""),
    ],
)
def test_the_job_of_a_cgroup(text: str, job: str) -> None:
    assert job_of(text) == job
