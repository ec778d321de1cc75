# SPDX-License-Identifier: MIT
"""What a training script takes from slurm-pal, so that its job can be moved: docs/frameworks.md.

Only the standard library and the framework itself are imported here: `pip install --no-deps` beside torch is enough.
"""
