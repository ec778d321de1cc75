#!/bin/bash
# SPDX-License-Identifier: MIT
#SBATCH --ntasks-per-node=1 --cpus-per-task=1 --time=1:00:00
#PAL elastic=1:3
# An elastic job that trains on CPUs: palsub job.sh. With sbatch it runs on a fixed number of nodes.
# For GPUs: --gpus-per-node=4 above, --nproc-per-node=4 and --backend=nccl below.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # else a node that joins later waits for ever (PyTorch 2.14)
exec srun torchrun --nproc-per-node=1 --max-restarts=1000 \
  --nnodes="${SLURM_PAL_MIN:-$SLURM_NNODES}:${SLURM_PAL_MAX:-$SLURM_NNODES}" \
  --rdzv-backend=c10d --rdzv-id="${SLURM_PAL_BASE:-$SLURM_JOB_ID}" \
  --rdzv-endpoint="${SLURM_PAL_ENDPOINT:-$(uname -n):20000}" --rdzv-conf=last_call_timeout=5 \
  train.py "$@"
