"""GPU times of several launches, taken so that they can be compared.

Blocks of launches per provider drift apart by 5-10 % as clocks and temperature move. Here every
round launches each provider once, in an order shuffled per round, and the median over the rounds
is reported: repeats agree within about 1 %.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

MAX_HEAD_START_S = 0.05
SPIN_CYCLES_PER_S = 2e9  # about the SM clock of an H100 or H200
L2_FLUSH_BYTES = 256 << 20  # several times the 50 MB of an H100's or H200's L2


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one launch over all rounds."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    rounds: int


def summarize(milliseconds: list[float]) -> Timing:
    """Median and the 20th and 80th percentile (nearest rank)."""
    ordered = sorted(milliseconds)
    last = len(ordered) - 1
    return Timing(
        median_ms=statistics.median(ordered),
        p20_ms=ordered[round(0.2 * last)],
        p80_ms=ordered[round(0.8 * last)],
        rounds=len(ordered),
    )


def time_interleaved(
    launches: Mapping[str, Callable[[], object]],
    *,
    budget_ms: float = 400.0,
    max_rounds: int = 40,
    min_rounds: int = 10,
    warmup_rounds: int = 3,
    flush_l2: bool = False,
) -> dict[str, Timing]:
    """Times each launch on the current stream with CUDA events.

    The host never waits between launches, and it gets a head start, so that its own time stays
    hidden behind the GPU's. The number of rounds is what fits into `budget_ms` of GPU time, within
    `min_rounds` and `max_rounds`. `flush_l2` overwrites the L2 cache before every launch.
    """
    if not launches:
        return {}
    names = list(launches)
    shuffle = random.Random(0).shuffle
    scratch = torch.empty(L2_FLUSH_BYTES, dtype=torch.uint8, device="cuda") if flush_l2 else None

    def one_round() -> list[tuple[str, torch.cuda.Event, torch.cuda.Event]]:
        shuffle(names)
        spans = []
        for name in names:
            if scratch is not None:
                scratch.zero_()
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            start.record()
            launches[name]()
            end.record()
            spans.append((name, start, end))
        return spans

    for _ in range(warmup_rounds):
        torch.cuda.synchronize()
        host_start = time.perf_counter()
        spans = one_round()
        host_seconds = time.perf_counter() - host_start
    torch.cuda.synchronize()
    round_ms = sum(start.elapsed_time(end) for _, start, end in spans)
    rounds = max(min_rounds, min(max_rounds, int(budget_ms / max(round_ms, 1e-3))))

    # The GPU spins until the host has issued about all rounds.
    torch.cuda._sleep(int(min(rounds * host_seconds, MAX_HEAD_START_S) * SPIN_CYCLES_PER_S))
    all_spans = [span for _ in range(rounds) for span in one_round()]
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in launches}
    for name, start, end in all_spans:
        times[name].append(start.elapsed_time(end))
    return {name: summarize(values) for name, values in times.items()}
