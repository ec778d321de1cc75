# SPDX-License-Identifier: MIT
"""One pre-LN transformer block, forward and backward, with PyTorch's own functions.

    a = x + W_o attention(W_qkv norm(x)),    y = a + W_down gelu(W_up norm(a))

Causal self-attention over heads of 128, an MLP of four times the width, no dropout and no
biases except those of the norms (Xiong et al., On Layer Normalization in the Transformer Architecture,
ICML 2020, for the order of norm and sum). The gradient that comes from above is fixed N(0,1)
data; gradients of the input and of all parameters are computed and overwritten each time, so
that every step does the same work.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # the field's own name for it

from slurm_pal.profiling.node.inputs import BlockShape

EPSILON = 1e-5  # of the norms


class Parameters(NamedTuple):
    """Weights as (out, in), as torch.nn.functional.linear takes them; norms as (width,)."""

    norm1_weight: torch.Tensor
    norm1_bias: torch.Tensor
    qkv: torch.Tensor  # (3 width, width)
    out: torch.Tensor  # (width, width)
    norm2_weight: torch.Tensor
    norm2_bias: torch.Tensor
    up: torch.Tensor  # (4 width, width)
    down: torch.Tensor  # (width, 4 width)


def draw(shape: BlockShape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Parameters:
    """Weights from N(0, 1 / inputs), so that values neither grow nor vanish; norms near one."""

    def normal(rows: int, columns: int) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator, device=device, dtype=torch.float32)
        return (values / columns**0.5).to(dtype).requires_grad_()

    def norm() -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.ones(shape.width, device=device, dtype=dtype).requires_grad_()
        return weight, torch.zeros(shape.width, device=device, dtype=dtype).requires_grad_()

    width = shape.width
    return Parameters(
        *norm(),
        normal(3 * width, width),
        normal(width, width),
        *norm(),
        normal(4 * width, width),
        normal(width, 4 * width),
    )


def forward(x: torch.Tensor, p: Parameters, heads: int) -> torch.Tensor:
    """(batch, seq, width) -> the same."""
    batch, seq, width = x.shape
    split = (batch, seq, 3, heads, width // heads)
    normed = F.layer_norm(x, (width,), p.norm1_weight, p.norm1_bias, EPSILON)
    q, k, v = F.linear(normed, p.qkv).view(split).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    a = x + F.linear(mixed.transpose(1, 2).reshape(batch, seq, width), p.out)
    normed = F.layer_norm(a, (width,), p.norm2_weight, p.norm2_bias, EPSILON)
    return a + F.linear(F.gelu(F.linear(normed, p.up)), p.down)


class BlockStep:
    """Forward and backward of one block on fixed data; calling it gives the output and the gradients."""

    def __init__(self, shape: BlockShape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> None:
        size = (shape.batch, shape.seq, shape.width)
        self.heads = shape.heads
        self.x = torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(dtype).requires_grad_()
        self.above = torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(dtype)
        self.parameters = draw(shape, dtype, device, generator)

    def __call__(self) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """The output, and the gradients of the input and of each parameter in their order."""
        y = forward(self.x, self.parameters, self.heads)
        return y, torch.autograd.grad(y, (self.x, *self.parameters), self.above)
