# SPDX-License-Identifier: MIT
"""A part of a training: so many steps of SGD on a small network, in numpy, from one directory into another."""

from __future__ import annotations

import argparse
import os
import time
import zlib

import numpy as np

INPUTS, HIDDEN, CLASSES, BATCH, RATE = 20, 64, 5, 32, 0.1


CENTRES = np.random.default_rng(7).normal(0, 1, (CLASSES, INPUTS))


def data(count: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points of CLASSES clouds that overlap, and their classes."""
    label = draw.integers(0, CLASSES, count)
    return CENTRES[label] + draw.normal(0, 1.5, (count, INPUTS)), label


def fresh() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    return {
        "w1": draw.normal(0, 0.2, (INPUTS, HIDDEN)), "b1": np.zeros(HIDDEN),
        "w2": draw.normal(0, 0.2, (HIDDEN, CLASSES)), "b2": np.zeros(CLASSES),
    }  # fmt: skip


def probabilities(model: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hidden = np.maximum(0.0, x @ model["w1"] + model["b1"])
    score = hidden @ model["w2"] + model["b2"]
    power = np.exp(score - score.max(axis=1, keepdims=True))
    return hidden, power / power.sum(axis=1, keepdims=True)


def loss(model: dict[str, np.ndarray], x: np.ndarray, label: np.ndarray) -> float:
    return float(-np.log(probabilities(model, x)[1][np.arange(label.size), label] + 1e-12).mean())


def tested(model: dict[str, np.ndarray]) -> float:
    """The loss on points that no copy has seen."""
    return loss(model, *data(20000, np.random.default_rng(1)))


def step(model: dict[str, np.ndarray], x: np.ndarray, label: np.ndarray) -> None:
    hidden, found = probabilities(model, x)
    found[np.arange(label.size), label] -= 1.0
    found /= label.size
    back = (found @ model["w2"].T) * (hidden > 0)
    for name, slope in (("w1", x.T @ back), ("b1", back.sum(0)), ("w2", hidden.T @ found), ("b2", found.sum(0))):
        model[name] -= RATE * slope


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", default="", help="directory; empty: begin")
    parser.add_argument("--save", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.0, help="s of each step, for a demonstration")
    given = parser.parse_args()
    model = dict(np.load(os.path.join(given.load, "model.npz"))) if given.load else fresh()
    # Each copy draws other samples, and in each round others than before.
    draw = np.random.default_rng(zlib.crc32(given.save.encode()))
    for _ in range(given.steps):
        step(model, *data(BATCH, draw))
        time.sleep(given.pause)
    np.savez(os.path.join(given.save, "model.npz"), **model)
    print(f"{given.steps} steps, loss {tested(model):.4f}", flush=True)


if __name__ == "__main__":
    main()
