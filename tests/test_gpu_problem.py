"""What the GPU checks are made of, as far as it needs no GPU: references, masks, parts of packs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from . import reference
from .gpu import all_checks, registry  # noqa: F401
from .gpu.kernels import KINDS
from .gpu.problem import attention, check_close, dense, legal, packed, run, visible


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 1), (0, 0), (-1, 2), (4, -1)])
@pytest.mark.parametrize("lengths", [(7, 7), (5, 9), (9, 5), (1, 6), (6, 1), (4, 0)])
def test_mask_is_the_definition(window: tuple[int, int], lengths: tuple[int, int]) -> None:
    seqlen_q, seqlen_k = lengths
    left, right = window
    mask = visible(dense(1, seqlen_q, seqlen_k, window=window), torch.device("cpu"))
    for i in range(seqlen_q):
        for j in range(seqlen_k):
            distance = i + seqlen_k - seqlen_q - j  # how far the key is before the query
            seen = (left < 0 or distance <= left) and (right < 0 or -distance <= right)
            assert bool(mask[i, j]) == seen, (i, j)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0)])
def test_reference_is_the_other_reference(window: tuple[int, int]) -> None:
    problem = dense(1, 30, 20, heads=4, heads_k=2, head_dim=16, window=window)
    inputs = problem.make_inputs("cpu")
    got = attention(problem, inputs, torch.float64)
    batched = tuple(x[None] for x in inputs)
    want = reference.attention(batched, window == (-1, 0), torch.float64)
    for (name, a), (_, b) in zip(got.items(), want.items(), strict=True):
        torch.testing.assert_close(a, b[0], msg=name)


def test_softcap_of_the_reference() -> None:
    """A large cap is none, and its gradient is the differences'."""
    problem = dense(1, 6, 5, heads=1, heads_k=1, head_dim=8, head_dim_v=16, softcap=1e6)
    q, k, v, dout = (x.double() for x in problem.make_inputs("cpu"))
    plain = attention(replace(problem, softcap=0.0), (q, k, v, dout), torch.float64)
    capped = attention(problem, (q, k, v, dout), torch.float64)
    for (name, a), (_, b) in zip(capped.items(), plain.items(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    problem = replace(problem, softcap=0.5)
    got = attention(problem, (q, k, v, dout), torch.float64)
    step = torch.zeros_like(q)
    step[2, 0, 3] = 1e-6
    ahead, behind = (
        (attention(problem, (q + sign * step, k, v, dout), torch.float64).out * dout).sum()
        for sign in (1, -1)
    )
    torch.testing.assert_close((ahead - behind) / 2e-6, got.dq[2, 0, 3], rtol=1e-4, atol=1e-7)


def test_parts_of_a_pack() -> None:
    problem = packed([3, 0, 5], [2, 4, 6], used_q=(3, 0, 2), used_k=(1, 4, 6), slack=2)
    assert problem.rows == (10, 14)
    q, k, v, dout = problem.make_inputs("cpu")
    part = problem.sequence((q, k, v, dout), 2)
    assert [x.shape[0] for x in part] == [2, 6, 6, 2]
    assert torch.equal(part[0], q[3:5]) and torch.equal(part[1], k[6:12])
    assert problem.only(0).lengths_k == (1,)
    cu_q, cu_k, used_q, used_k, longest_q, longest_k = problem.packing("cpu")
    assert cu_q.tolist() == [0, 3, 3, 8] and cu_k.tolist() == [0, 2, 6, 12]
    assert used_q.tolist() == [3, 0, 2] and used_k.tolist() == [1, 4, 6]
    assert (longest_q, longest_k) == (5, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_on_the_cpu_path(kind: str) -> None:
    """The GPU's problems, small, through the operators' CPU kernels."""
    problem = replace(KINDS[kind][-1], head_dim=72, head_dim_v=40, heads=2, heads_k=1)
    inputs = problem.make_inputs("cpu")
    for schedule in legal(problem, "cpu")[:2]:
        check_close(problem, inputs, run(problem, inputs, schedule), schedule)


def test_checks_have_limits_and_names() -> None:
    for name, check in registry.CHECKS.items():
        assert "/" in name and 0 < check.limit_s <= 180, name
    alone = [name for name, check in registry.CHECKS.items() if check.alone]
    assert len(alone) < 16, "checks that run alone make the run long"
