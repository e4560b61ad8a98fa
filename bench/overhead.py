"""What a backward costs beside its main kernel: host time a call, small kernels, extra memory.

python -m bench.overhead               the paper's 16,384 tokens by 2,048 hidden
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from bench.environment import why_no_hopper
from bench.kernel_stats import SMALL_KERNELS
from bench.providers import PROVIDERS, dash_options, make_inputs
from bench.shapes import AttentionShape, paper_shapes
from bench.timing import SPIN_CYCLES_PER_S

CALLS = 200


def host_microseconds(call: Callable[[], object]) -> float:
    """Median host time of a call whose launches do not wait: the GPU spins meanwhile."""
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    torch.cuda._sleep(int(0.2 * SPIN_CYCLES_PER_S))
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def host_overhead() -> dict[str, float]:
    """Microseconds of host time of one call: the operators alone, the backward as the gradient of
    `flash_attn_func` calls it (past the operator's own autograd kernel), and all of that gradient.
    A small problem, so that the allocator and the queue do not matter."""
    import dash
    from dash import _ops

    shape = AttentionShape(1, 256, 256, 2, 2, 128, True)
    inputs = make_inputs(shape, torch.bfloat16)
    passes = PROVIDERS["dash"].prepare(shape, inputs)
    leaves = [x.requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
    out = dash.flash_attn_func(*leaves, causal=True)

    def through_autograd() -> object:
        return torch.autograd.grad(out, leaves, inputs.dout, retain_graph=True)

    q, k, v = (x.detach() for x in leaves)
    options = dash_options("auto", shape, inputs)
    with torch.no_grad():
        results = torch.ops.dash_attn.fwd(q, k, v, *options)
        gradient = host_microseconds(
            lambda: _ops.backward(inputs.dout, q, k, v, *results, None, *options)
        )
        operator = host_microseconds(passes.backward)
        forward = host_microseconds(passes.forward)
    return {
        "backward_us": round(operator, 2),
        "backward_in_gradient_us": round(gradient, 2),
        "backward_through_autograd_us": round(host_microseconds(through_autograd), 2),
        "forward_us": round(forward, 2),
    }


def part_of(kernel: str) -> str:
    """What a kernel's time is booked on: one of SMALL_KERNELS, memset or main."""
    for part in SMALL_KERNELS:
        if part in kernel:
            return part
    return "memset" if "memset" in kernel.lower() else "main"


def parts_from_events(events: list[tuple[str, float]], calls: int) -> dict[str, float]:
    """Microseconds a call by part, from (kernel, microseconds) of all calls."""
    parts: dict[str, float] = {}
    for kernel, microseconds in events:
        part = part_of(kernel)
        parts[part] = parts.get(part, 0.0) + microseconds / calls
    return {part: round(value, 2) for part, value in sorted(parts.items())}


def kernel_times(shape: AttentionShape, provider: str = "dash", calls: int = 10) -> dict:
    """Microseconds of each part of a backward, as torch's profiler sees the kernels. Kernels that
    overlap are counted in full, so that the sum may exceed the call's time."""
    passes = PROVIDERS[provider].prepare(shape, make_inputs(shape, torch.bfloat16))
    for _ in range(3):
        passes.backward()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(calls):
            passes.backward()
        torch.cuda.synchronize()
    events = [
        (event.name, event.time_range.elapsed_us())
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return parts_from_events(events, calls)


def extra_bytes(shape: AttentionShape, provider: str) -> int:
    """Peak memory of one backward beyond what there was before, without dq, dk and dv."""
    inputs = make_inputs(shape, torch.bfloat16)
    passes = PROVIDERS[provider].prepare(shape, inputs)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    passes.backward()
    results = sum(x.numel() * x.element_size() for x in (inputs.q, inputs.k, inputs.v))
    return torch.cuda.max_memory_allocated() - before - results


def measure_overhead() -> dict[str, object]:
    """All of it, JSON-ready."""
    result: dict[str, object] = {"host": host_overhead(), "kernels": [], "memory": []}
    for shape in paper_shapes(seqlens=[4_096]):
        parts = kernel_times(shape)
        result["kernels"].append({"shape": str(shape), **parts})
    for seqlen in (4_096, 8_192, 16_384, 32_768):
        shape = AttentionShape(1, seqlen, seqlen, 16, 16, 128, True)
        row: dict[str, object] = {"shape": str(shape), "tokens": seqlen}
        for name in ("dash", "dash-unordered"):
            row[name] = extra_bytes(shape, name)
        row["fp32_dq"] = seqlen * 16 * 128 * 4
        result["memory"].append(row)
    return result


def main() -> int:
    """Prints the measurements as JSON; 2 without a Hopper GPU."""
    reason = why_no_hopper()
    if reason is not None:
        print(f"overhead: {reason}", file=sys.stderr)
        return 2
    print(json.dumps(measure_overhead(), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
