#!/bin/bash
# SPDX-License-Identifier: MIT
#SBATCH --gpus-per-node=1 --time=12:00:00
#PAL fork=5
here=${FORK_EXAMPLE:-$SLURM_SUBMIT_DIR}
while part=$(pal fork next --steps 20000 --merge "python3 $here/merge.py"); do
  eval "$part"
  python3 "$here/train.py" --load "$PAL_FORK_FROM" --steps "$PAL_FORK_STEPS" --save "$PAL_FORK_TO" || exit
done
[ "$SLURM_PAL_ROLE" = base ] || exit 0
final=$(pal fork result) && cp -r "$final" "result-$SLURM_JOB_ID"
