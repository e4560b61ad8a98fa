"""Numbers against the reference: every compiled kernel, every schedule, tails, shapes, groups."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import torch

from .. import reference
from ..case_checks import check_close, check_lengths, legal_schedules, run
from ..cases import HEAD_DIMS, AttentionCase
from ..compare import assert_close_to_reference, assert_results_equal
from . import registry

KEYS = list(product(HEAD_DIMS, ("bf16", "fp16"), (False, True)))


def mask_name(causal: bool) -> str:
    return "causal" if causal else "full"


def check_key(head_dim: int, dtype: str, causal: bool) -> None:
    """Lengths with and without tails, odd and even numbers of KV tiles, and both sq < sk and
    sq > sk, under every schedule that each allows."""
    lengths = [(512, 512), (1000, 1000), (1100, 1100), (257, 700), (700, 257)]
    for seqlen_q, seqlen_k in lengths:
        case = AttentionCase(
            "key", 2, seqlen_q, seqlen_k, 4, 2, head_dim, dtype=dtype, causal=causal
        )
        inputs = case.make_inputs("cuda")
        exact = reference.oracle(inputs, causal)
        plain = reference.attention(inputs, causal, case.torch_dtype)
        for schedule in legal_schedules(case, "cuda", ordered_only=False):
            got = run(inputs, causal, schedule)
            assert_close_to_reference(got, exact, plain, f"{case} {schedule}")


def check_tails(head_dim: int, causal: bool) -> None:
    case = AttentionCase("tails", heads=2, heads_k=1, head_dim=head_dim, causal=causal)
    check_lengths(case, "cuda", list(range(1, 301, 7)))


def check_unequal_lengths(head_dim: int, causal: bool) -> None:
    pairs = [(1, 300), (300, 1), (1, 1), (5, 2), (63, 2049), (2049, 63), (129, 128), (128, 129)]
    for seqlen_q, seqlen_k in pairs:
        case = AttentionCase("unequal", 2, seqlen_q, seqlen_k, 3, 3, head_dim, causal=causal)
        inputs = case.make_inputs("cuda")
        check_close(inputs, causal, run(inputs, causal), str(case))


def check_groups(head_dim: int) -> None:
    for heads, heads_k in [(4, 4), (8, 2), (9, 3), (7, 1), (32, 1)]:
        case = AttentionCase("group", 2, 333, 500, heads, heads_k, head_dim, causal=True)
        inputs = case.make_inputs("cuda")
        check_close(inputs, True, run(inputs, True), str(case))


def check_moving_maxima(head_dim: int, dtype: str) -> None:
    """Scores that climb along the keys for some rows of a warp, fall for others, and stay for the
    rest; by so little that a row's reference never follows its maximum, by so much that it does in
    every tile, and in between."""
    for causal, climb in product((False, True), (1.0, 6.0, 40.0)):  # log2, in 128 keys
        case = AttentionCase("maxima", 1, 700, 700, 3, 3, head_dim, dtype=dtype, causal=causal)
        q, k, v, dout = case.make_inputs("cuda")
        positions = torch.arange(700, device="cuda") / 128
        direction = torch.arange(700, device="cuda") % 3 - 1  # falls, stays, climbs
        # Score and softmax scale: the product of the first components, in nats.
        q[..., 0] = direction[None, :, None] * head_dim**0.5
        k[..., 0] = (positions * climb * math.log(2))[None, :, None]
        check_close((q, k, v, dout), causal, run((q, k, v, dout), causal), f"{case} by {climb}")


for _head_dim, _dtype, _causal in KEYS:
    registry.add(
        f"accuracy/hdim{_head_dim}-{_dtype}-{mask_name(_causal)}",
        partial(check_key, _head_dim, _dtype, _causal),
    )
for _head_dim, _causal in product(HEAD_DIMS, (False, True)):
    _key = f"hdim{_head_dim}-{mask_name(_causal)}"
    registry.add(f"lengths/every-7th-{_key}", partial(check_tails, _head_dim, _causal))
    registry.add(f"lengths/unequal-{_key}", partial(check_unequal_lengths, _head_dim, _causal))
for _head_dim, _dtype in product(HEAD_DIMS, ("bf16", "fp16")):
    registry.add(
        f"accuracy/moving-maxima-hdim{_head_dim}-{_dtype}",
        partial(check_moving_maxima, _head_dim, _dtype),
    )
for _head_dim in HEAD_DIMS:
    registry.add(f"gqa/hdim{_head_dim}", partial(check_groups, _head_dim))


@registry.check("accuracy/softmax-scale")
def softmax_scale() -> None:
    case = AttentionCase("scale", 1, 300, 300, 2, 2, 128, causal=True)
    inputs = case.make_inputs("cuda")
    for scale in (0.01, 0.5):
        got = run(inputs, True, softmax_scale=scale)
        exact = reference.oracle(inputs, True, softmax_scale=scale)
        plain = reference.attention(inputs, True, torch.bfloat16, softmax_scale=scale)
        assert_close_to_reference(got, exact, plain, f"softmax_scale {scale}")


@registry.check("accuracy/cpu-path")
def cpu_path() -> None:
    """The CPU path and the kernels are the same algorithm: both within the rule of one oracle."""
    for causal in (False, True):
        case = AttentionCase("cpu", 1, 200, 300, 4, 2, 64, causal=causal)
        inputs = case.make_inputs("cuda")
        got = run(inputs, causal)
        on_cpu = run(tuple(x.cpu() for x in inputs), causal)
        moved = reference.Results(*(x.cuda() for _, x in on_cpu.items()))
        check_close(inputs, causal, got, "kernel")
        check_close(inputs, causal, moved, "CPU path")


@registry.check("accuracy/row-blocks-do-not-mix")
def neighbours() -> None:
    """NaN in one batch entry and head stays there."""
    case = AttentionCase("neighbours", 3, 200, 200, 4, 4, 128, causal=True)
    inputs = case.make_inputs("cuda")
    clean = run(inputs, True)
    dirty = tuple(x.clone() for x in inputs)
    for x in dirty:
        x[1, :, 2] = torch.nan
    got = run(dirty, True)
    keep = torch.ones(3, 4, dtype=torch.bool, device="cuda")
    keep[1, 2] = False
    for (name, a), (_, b) in zip(got.items(), clean.items(), strict=True):
        by_head = (a, b) if name == "lse" else (a.transpose(1, 2), b.transpose(1, 2))
        assert torch.equal(*(x[keep] for x in by_head)), name
    assert_results_equal(run(inputs, True), clean, "after NaN")
