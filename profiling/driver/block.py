# SPDX-License-Identifier: MIT
"""One pre-LN transformer block, forward and backward, of our own kernels.

    a = x + attention(norm(x) W_qkv^T) W_out^T,    y = a + gelu(norm(a) W_up^T) W_down^T

Causal self-attention over heads of 128 with the scores in memory, an MLP of four times the width,
no dropout and no biases except those of the norms. The gradient that comes from above is fixed
N(0,1) data; gradients of the input and of all parameters are computed and overwritten each time, so
that every step does the same work. A step is started as one graph. Weights are (out, in), drawn from N(0, 1 / in).

All in bf16 with sums in fp32; gradients of the norms' gain and bias in fp32. Gradients take the
buffers of values that are not needed any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from slurm_pal.profiling.driver.arguments import Columns, Gelu, Norm, NumberFormat, Operand, Softmax
from slurm_pal.profiling.driver.gemm import Batch, product
from slurm_pal.profiling.driver.workbench import Array, BenchLaunch, DriverWorkbench
from slurm_pal.profiling.node import inputs
from slurm_pal.profiling.node.devices import DeviceError

HEAD = 128
SCORE_SCALE = HEAD**-0.5
EPSILON = 1e-5  # of the norms
PART_ROWS = 64  # that one block sums for the gradients of a norm
KERNELS = (
    "gemm_bf16_nt", "gemm_bf16_nn", "gemm_bf16_tn", "layer_norm", "layer_norm_back", "layer_norm_parts",
    "column_sums", "softmax", "softmax_back", "gelu", "gelu_back",
)  # fmt: skip

Launch = Callable[[], None]


class _NormArrays(NamedTuple):
    gain: Array
    bias: Array
    mean: Array  # fp32, one per row
    rstd: Array
    d_both: Array  # gradients of gain and bias, fp32 (2, width)


class Block:
    """Buffers and launches of one step. Raises DeviceError."""

    def __init__(self, bench: DriverWorkbench) -> None:
        self._bench = bench
        self._gpu = bench.gpu
        self.shape = inputs.block(bench.spec.shape)
        self._check()
        self.width, self.seq = self.shape.width, self.shape.seq
        self.tokens = self.shape.batch * self.seq
        bench.load(KERNELS)
        self._allocate()
        self.launches = [*self._forward(), *self._back_mlp(), *self._back_attention()]

    def _check(self) -> None:
        width, seq = self.shape.width, self.shape.seq
        if width % HEAD or seq % HEAD:
            raise DeviceError(f"tblock: width {width} and sequence {seq}; wanted multiples of {HEAD}")

    def _allocate(self) -> None:
        d, t, bf16 = self.width, self.tokens, NumberFormat.BF16
        normal, empty = self._bench.normal, self._bench.empty
        self.x, self.above = normal(bf16, t, d), normal(bf16, t, d)
        self.w_qkv, self.w_out = self._weight(3 * d, d), self._weight(d, d)
        self.w_up, self.w_down = self._weight(4 * d, d), self._weight(d, 4 * d)
        self.d_qkv_w, self.d_out_w = empty(bf16, 3 * d, d), empty(bf16, d, d)
        self.d_up_w, self.d_down_w = empty(bf16, 4 * d, d), empty(bf16, d, 4 * d)
        self.norm1, self.norm2 = self._norm_arrays(), self._norm_arrays()
        self.parts = empty(NumberFormat.FP32, t // PART_ROWS, 2 * d)
        self.normed1, self.normed2 = empty(bf16, t, d), empty(bf16, t, d)
        self.qkv, self.d_qkv = empty(bf16, t, 3 * d), empty(bf16, t, 3 * d)
        count = self.shape.batch * (d // HEAD)
        self.p, self.d_p = empty(bf16, count, self.seq, self.seq), empty(bf16, count, self.seq, self.seq)
        self.mixed, self.a, self.y = empty(bf16, t, d), empty(bf16, t, d), empty(bf16, t, d)
        self.up, self.active, self.d_active = empty(bf16, t, 4 * d), empty(bf16, t, 4 * d), empty(bf16, t, 4 * d)
        self.d_a, self.d_x, self.d_rows = empty(bf16, t, d), empty(bf16, t, d), empty(bf16, t, d)

    def _weight(self, rows: int, columns: int) -> Array:
        return self._bench.normal(NumberFormat.BF16, rows, columns, scale=columns**-0.5)

    def _norm_arrays(self) -> _NormArrays:
        normal, empty = self._bench.normal, self._bench.empty
        return _NormArrays(
            normal(NumberFormat.BF16, self.width, scale=0.0, offset=1.0),
            normal(NumberFormat.BF16, self.width, scale=0.0),
            empty(NumberFormat.FP32, self.tokens),
            empty(NumberFormat.FP32, self.tokens),
            empty(NumberFormat.FP32, 2, self.width),
        )

    def arrays(self) -> dict[str, Array]:
        """Inputs, output and gradients by name."""
        named = {"x": self.x, "above": self.above, "y": self.y, "d_x": self.d_x}
        named |= {"w_qkv": self.w_qkv, "w_out": self.w_out, "w_up": self.w_up, "w_down": self.w_down}
        named |= {"d_w_qkv": self.d_qkv_w, "d_w_out": self.d_out_w, "d_w_up": self.d_up_w, "d_w_down": self.d_down_w}
        return named | {"d_norm1": self.norm1.d_both, "d_norm2": self.norm2.d_both}

    # ---- matrix products: row-major, n as it lies, t transposed

    def _linear(self, x: Array, weight: Array, out: Array, add: Array | None = None) -> Launch:
        """out = x weight^T (+ add)."""
        sizes = (x.shape[0], weight.shape[0], weight.shape[1])
        factors = (_whole(x), _whole(weight), _whole(out))
        return product(self._gpu, "gemm_bf16_nt", factors, sizes, add=add.address if add else 0)

    def _linear_back(self, dy: Array, weight: Array, dx: Array) -> Launch:
        """dx = dy weight."""
        sizes = (dy.shape[0], weight.shape[1], weight.shape[0])
        return product(self._gpu, "gemm_bf16_nn", (_whole(dy), _whole(weight), _whole(dx)), sizes)

    def _weight_back(self, dy: Array, x: Array, dw: Array) -> Launch:
        """dw = dy^T x."""
        sizes = (dy.shape[1], x.shape[1], x.shape[0])
        return product(self._gpu, "gemm_bf16_tn", (_whole(dy), _whole(x), _whole(dw)), sizes)

    def _heads(
        self, form: str, factors: tuple[Operand, Operand, Operand], sizes: tuple[int, int, int], alpha: float = 1.0
    ) -> Launch:
        """One product per head."""
        heads = self.width // HEAD
        return product(self._gpu, form, factors, sizes, alpha=alpha, batch=Batch(heads * self.shape.batch, heads))

    def _part(self, qkv: Array, which: int) -> Operand:
        """Heads of q, k or v within their common rows."""
        row = 3 * self.width
        return Operand(qkv.address + which * self.width * qkv.format.size, row, self.seq * row, HEAD)

    def _scores(self, p: Array) -> Operand:
        square = self.seq * self.seq
        return Operand(p.address, self.seq, self.width // HEAD * square, square)

    def _rows(self, x: Array) -> Operand:
        """Heads of an array of the block's width."""
        return Operand(x.address, self.width, self.seq * self.width, HEAD)

    # ---- the other kernels

    def _norm(self, x: Array, norm: _NormArrays, y: Array) -> Launch:
        argument = Norm(
            x=x.address, gain=norm.gain.address, bias=norm.bias.address, y=y.address,
            mean=norm.mean.address, rstd=norm.rstd.address, width=self.width, epsilon=EPSILON,
        )  # fmt: skip
        return self._gpu.launch("layer_norm", (self.tokens, 1), argument)

    def _norm_back(self, x: Array, norm: _NormArrays, dy: Array, add: Array, dx: Array) -> list[Launch]:
        argument = Norm(
            x=x.address, gain=norm.gain.address, mean=norm.mean.address, rstd=norm.rstd.address,
            dy=dy.address, add=add.address, dx=dx.address, parts=self.parts.address, width=self.width,
        )  # fmt: skip
        chunks = self.tokens // PART_ROWS
        sums = Columns(norm.d_both.address, self.parts.address, chunks, 2 * self.width)
        return [
            self._gpu.launch("layer_norm_back", (self.tokens, 1), argument),
            self._gpu.launch("layer_norm_parts", (-(-self.width // 512), chunks), argument),
            self._gpu.launch("column_sums", (-(-2 * self.width // 256), 1), sums),
        ]

    def _softmax(self, kernel: str) -> Launch:
        rows = self.p.shape[0] * self.seq
        return self._gpu.launch(kernel, (rows, 1), Softmax(self.p.address, self.d_p.address, self.seq, 0))

    def _gelu(self, kernel: str) -> Launch:
        vectors = self.up.size // 16
        argument = Gelu(self.up.address, self.active.address, self.d_active.address, vectors)
        return self._gpu.launch(kernel, (-(-vectors // 256), 1), argument)

    # ---- the step

    def _forward(self) -> list[Launch]:
        seq = self.seq
        q, k, v = (self._part(self.qkv, i) for i in range(3))
        return [
            self._norm(self.x, self.norm1, self.normed1),
            self._linear(self.normed1, self.w_qkv, self.qkv),
            self._heads("gemm_bf16_nt", (q, k, self._scores(self.p)), (seq, seq, HEAD), SCORE_SCALE),
            self._softmax("softmax"),
            self._heads("gemm_bf16_nn", (self._scores(self.p), v, self._rows(self.mixed)), (seq, HEAD, seq)),
            self._linear(self.mixed, self.w_out, self.a, add=self.x),
            self._norm(self.a, self.norm2, self.normed2),
            self._linear(self.normed2, self.w_up, self.up),
            self._gelu("gelu"),
            self._linear(self.active, self.w_down, self.y, add=self.a),
        ]

    def _back_mlp(self) -> list[Launch]:
        """From the gradient of y to that of a."""
        return [
            self._linear_back(self.above, self.w_down, self.d_active),
            self._weight_back(self.above, self.active, self.d_down_w),
            self._gelu("gelu_back"),
            self._linear_back(self.d_active, self.w_up, self.d_rows),
            self._weight_back(self.d_active, self.normed2, self.d_up_w),
            *self._norm_back(self.a, self.norm2, self.d_rows, self.above, self.d_a),
        ]

    def _back_attention(self) -> list[Launch]:
        """From the gradient of a to that of x."""
        seq = self.seq
        q, k, v = (self._part(self.qkv, i) for i in range(3))
        dq, dk, dv = (self._part(self.d_qkv, i) for i in range(3))
        p, d_p, d_mixed = self._scores(self.p), self._scores(self.d_p), self._rows(self.d_rows)
        return [
            self._linear_back(self.d_a, self.w_out, self.d_rows),
            self._weight_back(self.d_a, self.mixed, self.d_out_w),
            self._heads("gemm_bf16_nt", (d_mixed, v, d_p), (seq, seq, HEAD)),
            self._heads("gemm_bf16_tn", (p, d_mixed, dv), (seq, HEAD, seq)),
            self._softmax("softmax_back"),
            self._heads("gemm_bf16_nn", (d_p, k, dq), (seq, HEAD, seq), SCORE_SCALE),
            self._heads("gemm_bf16_tn", (d_p, q, dk), (seq, HEAD, seq), SCORE_SCALE),
            self._linear_back(self.d_qkv, self.w_qkv, self.d_rows),
            self._weight_back(self.d_qkv, self.normed1, self.d_qkv_w),
            *self._norm_back(self.x, self.norm1, self.d_rows, self.d_a, self.d_x),
        ]


def build(bench: DriverWorkbench) -> BenchLaunch:
    """The benchmark. Raises DeviceError."""
    block = Block(bench)
    return BenchLaunch(bench.gpu.captured(block.launches), 1.0, block.arrays())


def _whole(array: Array) -> Operand:
    return Operand(array.address, array.shape[-1], 0, 0)
