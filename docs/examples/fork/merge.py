# SPDX-License-Identifier: MIT
"""Merge what copies saved: merge.py OUT STEPS DIR [STEPS DIR]... takes the mean of their parameters, by steps."""

from __future__ import annotations

import os
import sys

import numpy as np

out, *rest = sys.argv[1:]
weights = np.array([float(steps) for steps in rest[::2]])
models = [np.load(os.path.join(folder, "model.npz")) for folder in rest[1::2]]
merged = {
    name: sum(weight * model[name] for weight, model in zip(weights / weights.sum(), models, strict=True))
    for name in models[0].files
}
np.savez(os.path.join(out, "model.npz"), **merged)
