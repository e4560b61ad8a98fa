"""The benchmarks' FLOP formula against a count of visible pairs, one by one."""

from __future__ import annotations

import pytest

from bench.flops import attention_flops, flops_of_pairs, tflops, visible_pairs


def counted_pairs(seqlen_q: int, seqlen_k: int, causal: bool) -> int:
    """Pairs under a bottom-right aligned mask, by looking at each."""
    diagonal = seqlen_k - seqlen_q
    return sum(
        1
        for query in range(seqlen_q)
        for key in range(seqlen_k)
        if not causal or key <= query + diagonal
    )


@pytest.mark.parametrize("seqlen_q", [0, 1, 2, 7, 16, 33])
@pytest.mark.parametrize("seqlen_k", [0, 1, 3, 7, 17, 40])
def test_pairs_against_count(seqlen_q: int, seqlen_k: int) -> None:
    assert visible_pairs(seqlen_q, seqlen_k, False) == counted_pairs(seqlen_q, seqlen_k, False)
    if seqlen_q != seqlen_k:
        assert visible_pairs(seqlen_q, seqlen_k, True) == counted_pairs(seqlen_q, seqlen_k, True)


@pytest.mark.parametrize("lengths", [(7, 7), (9, 5), (5, 9), (1, 8), (8, 1)])
@pytest.mark.parametrize("left", [0, 1, 4, 20])
def test_window_against_count(lengths: tuple[int, int], left: int) -> None:
    seqlen_q, seqlen_k = lengths
    for causal in (False, True):
        distances = [
            query + seqlen_k - seqlen_q - key
            for query in range(seqlen_q)
            for key in range(seqlen_k)
        ]
        want = sum(d <= left and (d >= 0 or not causal) for d in distances)
        assert visible_pairs(seqlen_q, seqlen_k, causal, left) == want


def test_two_head_dims() -> None:
    """S and dS products have q's head dim, the others v's."""
    assert flops_of_pairs(10, 192, 128, backward=False) == 2 * 10 * (192 + 128)
    assert flops_of_pairs(10, 192, 128, backward=True) == 2 * 10 * (3 * 192 + 2 * 128)


@pytest.mark.parametrize("seqlen", [1, 8, 65, 300])
def test_equal_lengths_follow_the_convention(seqlen: int) -> None:
    """Half of the square; the count has half a diagonal more."""
    assert visible_pairs(seqlen, seqlen, True) == seqlen**2 / 2
    assert visible_pairs(seqlen, seqlen, True) + seqlen / 2 == counted_pairs(seqlen, seqlen, True)


def test_forward_and_backward() -> None:
    """Two products of 2 FLOP a multiply-add forward, five backward."""
    sizes = {"batch": 3, "num_heads": 5, "seqlen_q": 11, "seqlen_k": 13, "head_dim": 64}
    product = 2 * 3 * 5 * 11 * 13 * 64
    assert attention_flops(**sizes, causal=False) == 2 * product
    assert attention_flops(**sizes, causal=False, backward=True) == 5 * product


def test_tflops() -> None:
    assert tflops(2e12, 4.0) == pytest.approx(500.0)
