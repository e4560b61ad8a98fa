"""The hand-over by itself: a fold that is not commutative, through many CTAs."""

from __future__ import annotations

import torch

from . import registry

WIDTH, COUNTER_STRIDE = 256, 8


def fold(contributors: list[int], start: torch.Tensor) -> torch.Tensor:
    """What one chain gives if the contributors add in this order, in float32."""
    x = start.clone()
    for c in contributors:
        x = x * 0.5 + (c + 1)
    return x


def run_fold(num_chains: int, contributors: int, jitter: int) -> tuple[torch.Tensor, torch.Tensor]:
    start = torch.randn(num_chains, WIDTH)
    chains = start.cuda()
    semaphore = torch.zeros(num_chains * COUNTER_STRIDE, dtype=torch.int32, device="cuda")
    torch.ops.dash_attn.semaphore_fold(chains, semaphore, contributors, jitter)
    torch.cuda.synchronize()
    return chains.cpu(), start


# Half of what came before is left at each step, so only the last two dozen contributors show in a
# float32: lengths below that see every swap.
SHAPES = [(1, 1), (1, 2), (3, 5), (16, 20), (64, 20), (7, 132), (16, 300)]


def _check(jitter: int, repeats: int) -> None:
    for num_chains, contributors in SHAPES:
        for repeat in range(repeats):
            got, start = run_fold(num_chains, contributors, jitter)
            want = fold(list(range(contributors)), start)
            assert torch.equal(got, want), f"{num_chains} chains, {contributors=}, {repeat=}"


@registry.check("semaphore/fold")
def plain() -> None:
    _check(jitter=0, repeats=10)


@registry.check("semaphore/fold-under-jitter", 60)
def jitter() -> None:
    for amount in (1, 100):
        _check(jitter=amount, repeats=5)


@registry.check("semaphore/a-wrong-order-would-show")
def wrong_order() -> None:
    start = torch.randn(1, WIDTH)
    order = list(range(20))
    want = fold(order, start)
    for i in range(19):
        swapped = [*order[:i], i + 1, i, *order[i + 2 :]]
        assert not torch.equal(fold(swapped, start), want), f"swap at {i} does not show"
