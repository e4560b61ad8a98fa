"""Fewer SMs, several streams, CUDA graphs, and errors that must come before a launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import dash

from .. import case_checks
from ..case_checks import check_close, legal_schedules, run, run_autograd
from ..cases import CASES, DTYPES, AttentionCase
from ..compare import assert_bitwise_equal, assert_results_equal
from ..reference import Results
from . import registry

VARIANTS = ("full", "causal", "packed_full", "general")


@registry.check("device/fewer-sms", 60)
def fewer_sms() -> None:
    case = CASES["fewer-sms"]
    inputs = case.make_inputs("cuda")
    case_checks.check_reference_and_bits(case, "cuda")
    for schedule in legal_schedules(case, "cuda"):
        want = run(inputs, case.causal, schedule)
        for sm_margin in (1, 8, 18, 54, 92, 100):
            if schedule not in legal_schedules(case, "cuda", sm_margin=sm_margin):
                continue  # a gang that does not fit: device/gangs-that-do-not-fit
            got = run(inputs, case.causal, schedule, sm_margin=sm_margin)
            assert_results_equal(got, want, f"{schedule}, sm_margin {sm_margin}")


@registry.check("device/one-sm", 60)
def one_sm() -> None:
    """One CTA at a time is the hardest case for waiting."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for causal in (False, True):
        case = AttentionCase("one SM", 2, 500, 600, 4, 2, 128, causal=causal)
        inputs = case.make_inputs("cuda")
        for schedule in legal_schedules(case, "cuda", sm_margin=sms - 1):
            want = run(inputs, causal, schedule)
            got = run(inputs, causal, schedule, sm_margin=sms - 1)
            assert_results_equal(got, want, schedule)


@registry.check("device/gangs-that-do-not-fit")
def gangs_that_do_not_fit() -> None:
    """A named one is refused before a launch, and fits with exactly as many SMs as it needs."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for causal in (False, True):
        case = AttentionCase("gang", 1, 1280, 1280, 2, 2, 128, causal=causal)
        inputs = case.make_inputs("cuda")
        want = run(inputs, causal)
        few = legal_schedules(case, "cuda", sm_margin=sms - 1)
        for schedule in legal_schedules(case, "cuda"):
            gang = 1 if schedule in few else (5 if causal else 10)
            got = run(inputs, causal, schedule)
            again = run(inputs, causal, schedule, sm_margin=sms - gang)
            assert_results_equal(again, got, f"{schedule} on {gang} SMs")
            if gang > 1:
                with pytest.raises(ValueError, match=f"{schedule}.*needs {gang} SMs"):
                    dash.flash_attn_func(
                        *inputs[:3], causal=causal, schedule=schedule, sm_margin=sms - gang + 1
                    )
                with pytest.raises(RuntimeError, match=f"{schedule}.*needs {gang} SMs"):
                    run(inputs, causal, schedule, sm_margin=sms - gang + 1)
        assert_results_equal(run(inputs, causal), want, "auto")


@registry.check("device/two-streams", 60)
def two_streams() -> None:
    case = CASES["fewer-sms"]
    inputs = [case.make_inputs("cuda", seed) for seed in (0, 1)]
    streams = [torch.cuda.Stream() for _ in inputs]
    for schedule in ("auto", *legal_schedules(case, "cuda")):
        want = [run(one, case.causal, schedule) for one in inputs]
        torch.cuda.synchronize()
        for repeat in range(100 if schedule == "auto" else 30):
            got = []
            for one, stream in zip(inputs, streams, strict=True):
                with torch.cuda.stream(stream):
                    got.append(run(one, case.causal, schedule))
            torch.cuda.synchronize()
            for index in (0, 1):
                what = f"{schedule}, stream {index}, repeat {repeat}"
                assert_results_equal(got[index], want[index], what)


@registry.check("device/cuda-graph", 60)
def cuda_graph() -> None:
    """Also without a mask, where "auto" launches a gang cooperatively."""
    for case in (CASES["cuda-graph"], replace(CASES["cuda-graph"], causal=False)):
        check_graph(case)


def check_graph(case: AttentionCase) -> None:
    static = case.make_inputs("cuda")
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        run_autograd(static, case.causal)
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run_autograd(static, case.causal)
    for replay in range(100):
        fresh = case.make_inputs("cuda", seed=replay)
        for target, source in zip(static, fresh, strict=True):
            target.copy_(source)
        graph.replay()
        assert_results_equal(captured, run(fresh, case.causal), f"replay {replay}")


@registry.check("device/side-stream-producer", 60)
def side_stream_producer() -> None:
    """dout comes from a slow kernel on the call's own, not the default, stream: a launch on any
    other stream, or a read before the stream's order allows it, changes the chain."""
    case = CASES["side-stream-producer"]
    q, k, v, dout = case.make_inputs("cuda")
    mixer = torch.randn(128, 128, device="cuda", dtype=torch.bfloat16) / 16

    def chain(steps: int, synchronise: bool) -> torch.Tensor:
        gradient = dout
        for _ in range(steps):
            slow = gradient @ mixer
            for _ in range(3):
                slow = torch.tanh(slow) + dout
            gradient = run((q, k, v, slow), case.causal).dq
            if synchronise:
                torch.cuda.synchronize()
        return gradient

    want = chain(1000, synchronise=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        got = chain(1000, synchronise=False)
    stream.synchronize()
    assert_bitwise_equal(got, want, "dq after 1000 chained calls")


@registry.check("device/errors-before-a-launch")
def errors() -> None:
    """The operator's own message, not a failed launch's: it names the argument."""
    q, k, v, _ = AttentionCase("errors", 1, 64, 64, 2, 2, 64).make_inputs("cuda")
    with pytest.raises(ValueError, match=r"^k is on cpu"):
        dash.flash_attn_func(q, k.cpu(), v)
    with pytest.raises(ValueError, match=r"^v has dtype torch.float32"):
        dash.flash_attn_func(q, k, v.float())
    dense = (None, None, None, None, 0, 0)
    options = (0.125, -1, -1, 0.0, "auto", 0)
    operator = torch.ops.dash_attn.fwd
    wrong: list[tuple[str, tuple[torch.Tensor, ...]]] = [
        ("v must be torch.bfloat16", (q, k, v.float())),
        ("q must have 4", (q[0], k, v)),
        ("heads", (q, k[:, :, :0], v[:, :, :0])),
        ("q has head dim 41", (q[..., :41], k[..., :41], v[..., :41])),
        ("v must have size", (q, k[:, :10], v)),
    ]
    for message, tensors in wrong:
        with pytest.raises(RuntimeError, match=f"dash_attn: .*{message}"):
            operator(*tensors, *dense, *options)
    for message, wrong_options in [
        ("softcap", (0.125, -1, -1, -15.0, "auto", 0)),
        ("window", (0.125, -5, 5, 0.0, "auto", 0)),
        ("no such schedule", (0.125, -1, -1, 0.0, "no such schedule", 0)),
        ("shortest_first", (0.125, -1, -1, 0.0, "shortest_first", 0)),
        ("sm_margin", (0.125, -1, -1, 0.0, "auto", -1)),
    ]:
        with pytest.raises(RuntimeError, match=f"dash_attn: .*{message}"):
            operator(q, k, v, *dense, *wrong_options)
    begins = torch.tensor([0, 64], dtype=torch.int32, device="cuda")
    rows = tuple(x[0] for x in (q, k, v))
    for message, packing in [
        ("cu_seqlens_q", (begins.long(), begins, None, None, 64, 64)),
        ("cu_seqlens_q", (begins.cpu(), begins, None, None, 64, 64)),
        ("cu_seqlens_k", (begins, begins[:1], None, None, 64, 64)),
        ("seqused_q", (begins, begins, begins, None, 64, 64)),
        ("cu_seqlens_k", (begins, None, None, None, 64, 64)),
    ]:
        with pytest.raises(RuntimeError, match=f"dash_attn: .*{message}"):
            operator(*rows, *packing, *options)
    run((q, k, v, q), False)
    torch.cuda.synchronize()


@registry.check("device/what-is-supported")
def is_supported() -> None:
    """What is_supported says of a CUDA device, the library can do: every compiled kernel's call
    runs, and what is refused is refused by name."""
    kernels = dash.build_info()["kernels"]
    assert kernels == dash.compiled_kernels() and kernels
    for name in kernels:
        direction, head_dim, dtype, variant = name.split("_", 3)
        assert direction in ("fwd", "bwd") and variant in VARIANTS, name
        shape = (2, 100, 4, int(head_dim.removeprefix("hdim")))
        call = {"dtype": DTYPES[dtype], "causal": variant == "causal"}
        if variant == "general":
            call["softcap"] = 15.0
        if variant == "packed_full":
            continue
        assert dash.is_supported(shape, shape, device="cuda", **call) == (True, ""), name
        q = torch.zeros(shape, dtype=call.pop("dtype"), device="cuda", requires_grad=True)
        dash.flash_attn_func(q, q, q, **call).sum().backward()
        assert bool(q.grad.isfinite().all()), name
    for head_dim in (50, 512):
        shape = (2, 100, 4, head_dim)
        ok, reason = dash.is_supported(shape, shape, device="cuda")
        assert not ok and str(head_dim) in reason
        q = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")
        with pytest.raises(ValueError, match=f"head_dim {head_dim}"):
            dash.flash_attn_func(q, q, q)


@registry.check("device/strided-views", 60)
def strided() -> None:
    """q, k, v, dout each as a view with other strides: the bits of contiguous copies."""
    for causal in (False, True):
        case = AttentionCase("strided", 2, 300, 333, 4, 2, 128, causal=causal)
        inputs = case.make_inputs("cuda")
        want = run(inputs, causal)
        check_close(inputs, causal, want, str(case))
        for order in [(0, 2, 1, 3), (1, 0, 2, 3), (2, 0, 1, 3), (0, 1, 3, 2)]:
            back = tuple(order.index(i) for i in range(4))
            views = tuple(x.permute(order).contiguous().permute(back) for x in inputs)
            assert_results_equal(run(views, causal), want, f"memory order {order}")
        wide = tuple(torch.cat([x, x], dim=-1)[..., :128] for x in inputs)
        assert_results_equal(run(wide, causal), want, "rows twice as far apart")
        dout = torch.ones(1, 1, 1, 1, device="cuda", dtype=torch.bfloat16).expand_as(inputs[3])
        ones = (*inputs[:3], dout)
        copied = (*inputs[:3], dout.contiguous())
        assert_results_equal(run(ones, causal), run(copied, causal), "expanded dout")


@registry.check("device/autograd-equals-operators")
def autograd_path() -> None:
    for causal in (False, True):
        case = AttentionCase("autograd", 2, 200, 300, 4, 2, 64, causal=causal)
        inputs = case.make_inputs("cuda")
        for schedule in legal_schedules(case, "cuda"):
            got: Results = run_autograd(inputs, causal, schedule=schedule)
            assert_results_equal(got, run(inputs, causal, schedule), schedule)
