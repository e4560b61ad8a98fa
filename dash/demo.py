"""The main job, checked in front of your eyes: `python -m dash.demo` (or `make demo`).

With a Hopper GPU: one LLaMA-3-8B attention layer, forward and backward, through the CUDA kernels.
Errors against fp32 stand beside those of plain PyTorch in the same dtype, the gradients of repeated
backward passes are compared bit for bit, and the ordered and unordered backward are timed.
Without one: the same call on a small shape through the CPU path.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import flash_attn_func, is_supported

NAMES = ("out", "dq", "dk", "dv")


@dataclass(frozen=True)
class Layer:
    """Self-attention of one layer: batch 1, causal, bf16."""

    title: str
    seqlen: int
    num_heads: int
    num_heads_k: int
    head_dim: int
    repeats: int

    @property
    def forward_flops(self) -> float:
        """The field's convention: two products, half of the square for a causal mask."""
        return 4.0 * self.num_heads * self.seqlen**2 * self.head_dim / 2


GPU_LAYER = Layer("one LLaMA-3-8B attention layer", 4_096, 32, 8, 128, repeats=20)
CPU_LAYER = Layer("one small attention layer", 320, 8, 2, 128, repeats=3)


@dataclass(frozen=True)
class Inputs:
    """q, dout (1, seqlen, num_heads, head_dim); k, v (1, seqlen, num_heads_k, head_dim)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor


def why_not_cuda(layer: Layer) -> str:
    """Why the CUDA kernels cannot run the layer here, or ""."""
    if not torch.cuda.is_available():
        return "No CUDA GPU is visible to torch"
    return is_supported(
        (1, layer.seqlen, layer.num_heads, layer.head_dim),
        (1, layer.seqlen, layer.num_heads_k, layer.head_dim),
        device="cuda",
        causal=True,
    )[1]


def make_inputs(layer: Layer, device: str) -> Inputs:
    """Seeded standard normal tensors."""
    generator = torch.Generator(device=device).manual_seed(0)

    def normal(heads: int) -> torch.Tensor:
        size = (1, layer.seqlen, heads, layer.head_dim)
        return torch.randn(size, generator=generator, device=device, dtype=torch.bfloat16)

    q, k, v = (
        normal(heads).requires_grad_()
        for heads in (layer.num_heads, layer.num_heads_k, layer.num_heads_k)
    )
    return Inputs(q, k, v, normal(layer.num_heads))


def plain_attention(inputs: Inputs, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """out, dq, dk, dv of textbook attention in `dtype`: matmul, softmax, matmul and autograd.

    One KV head at a time, to bound the memory of the score matrices.
    """
    seqlen, head_dim = inputs.q.shape[1], inputs.q.shape[3]
    group = inputs.q.shape[2] // inputs.k.shape[2]
    mask = torch.ones(seqlen, seqlen, dtype=torch.bool, device=inputs.q.device).triu(1)
    parts: list[tuple[torch.Tensor, ...]] = []
    for head_k in range(inputs.k.shape[2]):
        heads = slice(head_k * group, (head_k + 1) * group)
        q, k, v, dout = (
            tensor.detach()[0].transpose(0, 1).to(dtype)
            for tensor in (
                inputs.q[:, :, heads],
                inputs.k[:, :, head_k : head_k + 1],
                inputs.v[:, :, head_k : head_k + 1],
                inputs.dout[:, :, heads],
            )
        )
        leaves = tuple(tensor.requires_grad_() for tensor in (q, k, v))
        scores = (q @ k.transpose(1, 2)) * head_dim**-0.5
        out = torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ v
        parts.append((out.detach(), *torch.autograd.grad(out, leaves, dout)))
    return tuple(torch.cat(tensors).transpose(0, 1)[None] for tensors in zip(*parts, strict=True))


def attention(inputs: Inputs, *, deterministic: bool = True) -> torch.Tensor:
    """The call that this library exists for."""
    return flash_attn_func(inputs.q, inputs.k, inputs.v, causal=True, deterministic=deterministic)


def gradients(inputs: Inputs, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """dq, dk, dv by autograd; the graph stays for another backward pass."""
    leaves = (inputs.q, inputs.k, inputs.v)
    return torch.autograd.grad(out, leaves, inputs.dout, retain_graph=True)


def check_errors(inputs: Inputs, results: tuple[torch.Tensor, ...]) -> bool:
    """Prints the largest error of each tensor beside plain PyTorch's; True if none is more than
    twice as large."""
    exact = plain_attention(inputs, torch.float32)
    plain = plain_attention(inputs, torch.bfloat16)
    is_right = True
    print("largest error against fp32      dash    plain PyTorch bf16")
    for name, value, want, other in zip(NAMES, results, exact, plain, strict=True):
        error = (value.float() - want).abs().max().item()
        plain_error = (other.float() - want).abs().max().item()
        is_close = error <= 2 * plain_error + 1e-5  # False for NaN
        is_right &= is_close
        verdict = "" if is_close else "   TOO LARGE"
        print(f"  {name:<4}                    {error:10.6f}    {plain_error:18.6f}{verdict}")
    return is_right


def check_bits(inputs: Inputs, results: tuple[torch.Tensor, ...], repeats: int) -> bool:
    """Prints whether repeated forward and backward passes give the bytes of `results`."""
    equal = 0
    for _ in range(repeats):
        out = attention(inputs)
        again = (out, *gradients(inputs, out))
        equal += all(
            torch.equal(a.view(torch.int16), b.view(torch.int16))
            for a, b in zip(results, again, strict=True)
        )
    print(f"out, dq, dk, dv equal bit for bit in {equal} of {repeats} repeats")
    return equal == repeats


def print_speed(layer: Layer, inputs: Inputs) -> None:
    """Median milliseconds and TFLOP/s; the launches are interleaved one by one."""
    outs = {
        name: attention(inputs, deterministic=name == "ordered")
        for name in ("ordered", "unordered")
    }
    launches: dict[str, Callable[[], object]] = {
        "forward": lambda: attention(inputs),
        "backward, ordered": lambda: gradients(inputs, outs["ordered"]),
        "backward, unordered": lambda: gradients(inputs, outs["unordered"]),
    }
    spans: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {}
    for _ in range(25):
        for name, launch in launches.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            launch()
            end.record()
            spans.setdefault(name, []).append((start, end))
    torch.cuda.synchronize()
    for name, events in spans.items():
        milliseconds = statistics.median(start.elapsed_time(end) for start, end in events[5:])
        flops = layer.forward_flops * (1.0 if name == "forward" else 2.5)
        print(f"  {name:<20} {milliseconds:8.3f} ms {flops / milliseconds * 1e-9:8.1f} TFLOP/s")


def main() -> int:
    """Exit status: 0, or 1 if an error is too large or bits differ."""
    reason = why_not_cuda(GPU_LAYER)
    layer, device = (CPU_LAYER, "cpu") if reason else (GPU_LAYER, "cuda")
    if reason:
        print(f"{reason}: running {layer.title} through the CPU path, which is slow by design.")
    else:
        print(f"dash on {torch.cuda.get_device_name()}: {layer.title}")
    print(
        f"batch 1, {layer.seqlen} tokens, {layer.num_heads} query heads, {layer.num_heads_k} KV "
        f"heads, head dim {layer.head_dim}, bf16, causal, forward and backward"
    )
    inputs = make_inputs(layer, device)
    out = attention(inputs)
    results = (out, *gradients(inputs, out))
    is_right = check_errors(inputs, results)
    is_right &= check_bits(inputs, results, layer.repeats)
    if not reason:
        print_speed(layer, inputs)
    print("all checks passed" if is_right else "A CHECK FAILED")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
