# SPDX-License-Identifier: MIT
"""What the kernels should give, in numpy and fp64: for `check` and the tests, never for a measurement."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slurm_pal.profiling.driver.arguments import NumberFormat

Real: TypeAlias = NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def numbers(raw: bytes, form: NumberFormat, shape: tuple[int, ...]) -> Real:
    """Device memory as numbers."""
    if form == NumberFormat.BF16:
        words = np.frombuffer(raw, dtype=np.uint16).astype(np.uint32) << 16
        return words.view(np.float32).astype(np.float64).reshape(shape)
    kind = {NumberFormat.FP16: "<f2", NumberFormat.FP64: "<f8"}.get(form, "<f4")
    return np.frombuffer(raw, dtype=np.dtype(kind)).astype(np.float64).reshape(shape)


def norm(x: Real, epsilon: float) -> tuple[Real, Real]:
    """Rows with mean 0 and variance 1, and what they were multiplied by; gain 1, bias 0."""
    rstd = 1.0 / np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)
    return (x - x.mean(axis=-1, keepdims=True)) * rstd, rstd


def norm_back(dy: Real, h: Real, rstd: Real) -> Real:
    """Gradient before the norm, from that behind it (gain 1)."""
    dx: Real = rstd * (dy - dy.mean(axis=-1, keepdims=True) - h * (dy * h).mean(axis=-1, keepdims=True))
    return dx


def gelu(x: Real) -> Real:
    """x times the normal distribution function."""
    y: Real = x * 0.5 * (1.0 + _erf(x / np.sqrt(2.0)))
    return y


def gelu_slope(x: Real) -> Real:
    """Its derivative."""
    slope: Real = 0.5 * (1.0 + _erf(x / np.sqrt(2.0))) + x * np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
    return slope


def block(x: Real, above: Real, weights: dict[str, Real], heads: int, epsilon: float) -> dict[str, Real]:
    """Output and gradients of the transformer block of block.py.

    `x` and `above` are (batch, seq, width); `weights` has w_qkv, w_out, w_up and w_down, (out, in).
    """
    batch, seq, width = x.shape
    head = width // heads

    def split(rows: Real) -> Real:
        return rows.reshape(batch, seq, heads, head).transpose(0, 2, 1, 3)

    def join(parts: Real) -> Real:
        return parts.transpose(0, 2, 1, 3).reshape(batch, seq, width)

    def weight_back(dy: Real, before: Real) -> Real:
        return dy.reshape(-1, dy.shape[-1]).T @ before.reshape(-1, before.shape[-1])

    h1, rstd1 = norm(x, epsilon)
    q, k, v = (split(part) for part in np.split(h1 @ weights["w_qkv"].T, 3, axis=-1))
    scores = np.where(np.tri(seq, dtype=bool), q @ k.transpose(0, 1, 3, 2) / np.sqrt(head), -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    mixed = join(p @ v)
    a = x + mixed @ weights["w_out"].T
    h2, rstd2 = norm(a, epsilon)
    up = h2 @ weights["w_up"].T
    active = gelu(up)

    d_up = above @ weights["w_down"] * gelu_slope(up)
    d_h2 = d_up @ weights["w_up"]
    d_a = above + norm_back(d_h2, h2, rstd2)
    d_mixed = split(d_a @ weights["w_out"])
    d_p = d_mixed @ v.transpose(0, 1, 3, 2)
    d_s = p * (d_p - (d_p * p).sum(axis=-1, keepdims=True)) / np.sqrt(head)
    d_parts = (d_s @ k, d_s.transpose(0, 1, 3, 2) @ q, p.transpose(0, 1, 3, 2) @ d_mixed)
    d_qkv = np.concatenate([join(part) for part in d_parts], axis=-1)
    d_h1 = d_qkv @ weights["w_qkv"]
    rows = (0, 1)
    return {
        "y": a + active @ weights["w_down"].T,
        "d_x": d_a + norm_back(d_h1, h1, rstd1),
        "d_w_qkv": weight_back(d_qkv, h1),
        "d_w_out": weight_back(d_a, mixed),
        "d_w_up": weight_back(d_up, h2),
        "d_w_down": weight_back(above, active),
        "d_norm1": np.stack([(d_h1 * h1).sum(axis=rows), d_h1.sum(axis=rows)]),
        "d_norm2": np.stack([(d_h2 * h2).sum(axis=rows), d_h2.sum(axis=rows)]),
    }
