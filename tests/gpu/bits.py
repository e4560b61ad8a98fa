"""Equal bits: over repeats, under load, on dirty memory, in other batches and other processes."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import product

import torch

from bench import fa3

from ..case_checks import check_reference_and_bits, legal_schedules, operator_options, run
from ..cases import CASES, HEAD_DIMS, AttentionCase
from ..compare import assert_results_equal, results_equal
from ..reference import Results
from . import registry
from .accuracy import mask_name
from .dirt import HUGE_BYTE, NAN_BYTE, busy_second_stream, keep_busy, poison_freed_memory
from .kernels import COMPILED_HEAD_DIMS, KINDS
from .problem import run as problem_run

REPEATS = 50
Gradients = tuple[torch.Tensor, ...]


def check_repeats(head_dim: int, causal: bool) -> None:
    """50 repeats idle and 50 under load, for every ordered schedule, with enough tiles for several
    waves."""
    dtype = "bf16" if causal else "fp16"
    case = AttentionCase("repeats", 4, 1300, 1300, 16, 8, head_dim, dtype=dtype, causal=causal)
    inputs = case.make_inputs("cuda")
    for schedule in legal_schedules(case, "cuda"):
        first = run(inputs, causal, schedule)
        idle = [results_equal(run(inputs, causal, schedule), first) for _ in range(REPEATS)]
        assert_all(idle, f"{schedule}, idle")
        loaded = []
        with busy_second_stream():
            for _ in range(REPEATS):
                keep_busy()
                loaded.append(results_equal(run(inputs, causal, schedule), first))
        assert_all(loaded, f"{schedule}, under load")


def assert_all(equal: list[torch.Tensor], what: str) -> None:
    """Each repeat had the first one's bits."""
    different = (~torch.stack(equal)).nonzero().flatten().tolist()
    assert not different, f"{what}: repeats {different} have other bits than the first"


def check_dirty_memory(head_dim: int, causal: bool) -> None:
    """Tails, rows without keys and groups, on memory full of NaN and of 0x7f bytes."""
    for seqlen_q, seqlen_k in [(300, 300), (1, 77), (400, 130), (130, 400)]:
        case = AttentionCase("dirty", 2, seqlen_q, seqlen_k, 6, 2, head_dim, causal=causal)
        for byte in (NAN_BYTE, HUGE_BYTE):
            check_reference_and_bits(
                case, "cuda", between=partial(poison_freed_memory, byte, 256 << 20)
            )


def check_batch_invariance(causal: bool) -> None:
    """A sequence's results do not depend on its slot, the batch size or its neighbours."""
    case = AttentionCase("batch", 8, 900, 900, 8, 4, 128, causal=causal)
    q, k, v, dout = case.make_inputs("cuda")
    schedules = legal_schedules(case, "cuda")
    for schedule in (*schedules, *(f"{name}/2" for name in schedules)):
        together = run((q, k, v, dout), causal, schedule)
        for b in (0, 3):
            alone = run(tuple(x[b : b + 1] for x in (q, k, v, dout)), causal, schedule)
            slot = Results(*(x[b : b + 1] for _, x in together.items()))
            assert_results_equal(alone, slot, f"{schedule}, batch entry {b} alone")
        three = run(tuple(x[[5, 0, 2]] for x in (q, k, v, dout)), causal, schedule)
        others = tuple(torch.cat([x[1:4] * 2, x[:1], x[4:]]) for x in (q, k, v, dout))
        moved = run(others, causal, schedule)
        first = Results(*(x[:1] for _, x in together.items()))
        for results, slot in ((three, 1), (moved, 3)):
            got = Results(*(x[slot : slot + 1] for _, x in results.items()))
            assert_results_equal(got, first, f"{schedule}, in slot {slot}")


def check_section_sizes(causal: bool) -> None:
    """The section size orders the dispatch and changes no bit."""
    case = AttentionCase("sections", 3, 1100, 1100, 6, 3, 128, dtype="fp16", causal=causal)
    inputs = case.make_inputs("cuda")
    for schedule in ("band", "mirrored", "comb", "shortest_first"):
        if schedule in legal_schedules(case, "cuda"):
            want = run(inputs, causal, schedule)
            for section in (1, 2, 4, 9):
                got = run(inputs, causal, f"{schedule}@{section}")
                assert_results_equal(got, want, f"{schedule}, sections of {section}")


def check_conversion(head_dim: int, causal: bool) -> None:
    """Of many waves the main kernel's converter warps turn most dQ tiles into dq, of one wave the
    postprocess kernel does. The same bits, with rows and columns that a tile has too many of."""
    case = AttentionCase("conversion", 24, 1000, 1000, 16, 16, head_dim, causal=causal)
    inputs = case.make_inputs("cuda")
    alone = {b: run(tuple(x[b : b + 1] for x in inputs), causal, "band") for b in (0, 11, 23)}
    with busy_second_stream():
        for _ in range(3):
            together = run(inputs, causal, "band")
            keep_busy()
            for b, want in alone.items():
                got = Results(*(x[b : b + 1] for _, x in together.items()))
                assert_results_equal(got, want, f"batch entry {b} of many")


for _head_dim, _causal in product(HEAD_DIMS, (False, True)):
    _key = f"hdim{_head_dim}-{mask_name(_causal)}"
    registry.add(
        f"bits/50-repeats-idle-and-loaded-{_key}", partial(check_repeats, _head_dim, _causal)
    )
    registry.add(f"bits/dirty-memory-{_key}", partial(check_dirty_memory, _head_dim, _causal))
for _head_dim, _causal in product((*COMPILED_HEAD_DIMS, 72), (False, True)):
    registry.add(
        f"bits/converted-by-warps-hdim{_head_dim}-{mask_name(_causal)}",
        partial(check_conversion, _head_dim, _causal),
    )
for _causal in (False, True):
    registry.add(
        f"bits/batch-invariance-{mask_name(_causal)}", partial(check_batch_invariance, _causal)
    )
    registry.add(f"bits/section-sizes-{mask_name(_causal)}", partial(check_section_sizes, _causal))


@registry.check("order/gqa-dirty-memory", 60)
def gqa_dirty_memory() -> None:
    case = CASES["gqa-dirty-memory"]
    check_reference_and_bits(case, "cuda", 3, partial(poison_freed_memory, NAN_BYTE))
    inputs = case.make_inputs("cuda")
    for schedule in legal_schedules(case, "cuda"):
        for byte in (NAN_BYTE, HUGE_BYTE):
            poison_freed_memory(byte)
            first = run(inputs, case.causal, schedule)
            for repeat in range(1, REPEATS // 2):
                again = run(inputs, case.causal, schedule)
                assert_results_equal(again, first, f"{schedule} repeat {repeat}")


@registry.check("order/dq-order-fp16-d64", 60)
def dq_order_fp16() -> None:
    case = CASES["dq-order-fp16-d64"]
    check_reference_and_bits(case, "cuda", repeats=100)
    with busy_second_stream():
        check_reference_and_bits(case, "cuda", repeats=100, between=keep_busy)


@registry.check("order/many-waves", 90)
def many_waves() -> None:
    check_reference_and_bits(CASES["many-waves"], "cuda", repeats=6)


@registry.check("order/flag-off-control", 60)
def flag_off_control() -> None:
    """Unordered dQ differs between some repeats here; otherwise equal bits would prove nothing."""
    case = CASES["flag-off-control"]
    inputs = case.make_inputs("cuda")
    check_reference_and_bits(case, "cuda", repeats=REPEATS)
    first = run(inputs, case.causal, "unordered")
    for _ in range(100):
        again = run(inputs, case.causal, "unordered")
        assert torch.equal(again.dk, first.dk) and torch.equal(again.dv, first.dv)
        if not torch.equal(again.dq, first.dq):
            return
    raise AssertionError("100 repeats of the unordered kernel gave the same dq")


def ours_and_fa3(head_dim: int, causal: bool) -> tuple[Gradients, Gradients]:
    """dq, dk, dv of the schedule that has the order of FA3's deterministic backward, and FA3's,
    both from FA3's forward."""
    case = AttentionCase("fa3", 2, 2048, 2048, 4, 4, head_dim, causal=causal)
    q, k, v, dout = (tensor.detach() for tensor in case.make_inputs("cuda"))
    options = {"softmax_scale": head_dim**-0.5, "is_causal": causal}
    out, lse = torch.ops.flash_attn_3.fwd(q, k, v, **options, num_splits=1)[:2]
    arguments = operator_options((q, k, v, dout), causal, "shortest_first" if causal else "band")
    ours = torch.ops.dash_attn.bwd(dout, q, k, v, out, lse, None, *arguments)
    theirs = tuple(torch.empty_like(tensor) for tensor in (q, k, v))
    torch.ops.flash_attn_3.bwd(dout, q, k, v, out, lse, *theirs, **options, deterministic=True)
    return ours, theirs


@registry.check("order/fa3-deterministic-bits")
def fa3_deterministic_bits() -> None:
    """Reports which part of the gradients has the bits of FA3's deterministic backward, if that is
    installed; decides only that ours repeats."""
    if reason := fa3.why_unavailable():
        raise registry.SkippedError(reason)
    for head_dim, causal in product((64, 128), (False, True)):
        ours, theirs = ours_and_fa3(head_dim, causal)
        again, theirs_again = ours_and_fa3(head_dim, causal)
        assert all(map(torch.equal, ours, again)), "ours does not repeat"
        shares = [float((a == b).float().mean()) for a, b in zip(ours, theirs, strict=True)]
        repeats = all(map(torch.equal, theirs, theirs_again))
        registry.note(
            f"hdim{head_dim} {mask_name(causal)}: share of dq, dk, dv with FA3's bits: "
            f"{', '.join(f'{share:.4f}' for share in shares)}; FA3's repeat: {repeats}"
        )


@registry.check("order/schedules-are-different-orders")
def schedules_differ() -> None:
    """ascending and shortest_first add in opposite order: their dq cannot be the same bits."""
    case = AttentionCase("orders", 1, 1024, 1024, 8, 8, 128, dtype="fp16", causal=True)
    inputs = case.make_inputs("cuda")
    ascending, shortest, band = (
        run(inputs, True, name) for name in ("ascending", "shortest_first", "band")
    )
    assert not torch.equal(ascending.dq, shortest.dq)
    # band has ascending's turns and the opposite traversal: equal dq, other dk and dv.
    assert torch.equal(ascending.dq, band.dq)
    assert not torch.equal(ascending.dk, band.dk)


def fingerprint() -> str:
    """sha256 of everything that a few fixed problems give."""
    digest = hashlib.sha256()
    for head_dim, causal in product(HEAD_DIMS, (False, True)):
        case = AttentionCase("process", 2, 500, 700, 6, 2, head_dim, causal=causal)
        inputs = tuple(x.cuda() for x in case.make_inputs("cpu"))
        for _, tensor in run(inputs, causal).items():
            on_host = tensor.contiguous().cpu()
            digest.update(ctypes.string_at(on_host.data_ptr(), on_host.nbytes))
    for head_dim, kind in product(COMPILED_HEAD_DIMS, KINDS):
        problem = replace(KINDS[kind][-1], head_dim=head_dim)
        inputs = tuple(x.cuda() for x in problem.make_inputs("cpu"))
        for _, tensor in problem_run(problem, inputs).items():
            on_host = tensor.contiguous().cpu()
            digest.update(ctypes.string_at(on_host.data_ptr(), on_host.nbytes))
    return digest.hexdigest()


_FIRST_BACKWARD = """
import torch, dash
blocks = [torch.empty(1 << 26, device="cuda")]
blocks += [torch.empty(1 << 17, device="cuda") for _ in range(64)]
del blocks
q = torch.randn(1, 200, 2, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
out = dash.flash_attn_func(q, q, q, causal=True)
(first,) = torch.autograd.grad(out, q, torch.ones_like(out), retain_graph=True)
torch.cuda.synchronize()
(again,) = torch.autograd.grad(out, q, torch.ones_like(out))
assert torch.equal(first, again) and bool(first.isfinite().all())
"""


@registry.check("bits/first-backward-of-a-process", 60)
def first_backward() -> None:
    """Autograd's thread has no current context until something makes one, and with free blocks in
    the allocator nothing but our launch does."""
    command = [sys.executable, "-c", _FIRST_BACKWARD]
    child = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert child.returncode == 0 and "error" not in child.stderr.lower(), child.stderr[-2000:]


@registry.check("bits/fresh-process", 90)
def fresh_process() -> None:
    command = [sys.executable, "-c", "from tests.gpu.bits import fingerprint; print(fingerprint())"]
    other = subprocess.run(command, capture_output=True, text=True, timeout=80)
    assert other.returncode == 0, other.stderr[-2000:]
    assert other.stdout.strip() == fingerprint()
