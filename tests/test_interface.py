"""The public functions on the CPU path: results, errors, and what they say about themselves."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import dash

from .case_checks import legal_schedules, operator_options, run
from .cases import AttentionCase
from .compare import assert_bitwise_equal

CASE = AttentionCase("interface", 2, 40, 50, 4, 2, 64)


def qkv(case: AttentionCase = CASE) -> tuple[Tensor, Tensor, Tensor]:
    return case.make_inputs("cpu")[:3]


def test_returns_out_or_out_and_lse() -> None:
    q, k, v = qkv()
    out = dash.flash_attn_func(q, k, v)
    assert isinstance(out, Tensor) and out.shape == q.shape and out.dtype == q.dtype
    for keyword in ("return_lse", "return_attn_probs"):
        again, lse = dash.flash_attn_func(q, k, v, **{keyword: True})
        assert_bitwise_equal(again, out, "out")
        assert lse.shape == (2, 4, 40) and lse.dtype == torch.float32


def test_positional_arguments_are_those_of_flash_attention_3() -> None:
    q, k, v = qkv()
    out = dash.flash_attn_func(q, k, v, 0.25, True)
    assert_bitwise_equal(out, dash.flash_attn_func(q, k, v, softmax_scale=0.25, causal=True), "out")
    assert not torch.equal(out, dash.flash_attn_func(q, k, v, causal=True))
    with pytest.raises(TypeError):
        dash.flash_attn_func(q, k, v, 0.25, True, (-1, -1))


def test_windows_that_are_no_window() -> None:
    q, k, v = qkv()
    full, causal = dash.flash_attn_func(q, k, v), dash.flash_attn_func(q, k, v, causal=True)
    for window in [(-1, -1), (None, None), (50, 50), (49, 39), (-1, 1000)]:
        out = dash.flash_attn_func(q, k, v, window_size=window)
        assert_bitwise_equal(out, full, f"{window}")
        out = dash.flash_attn_func(q, k, v, causal=True, window_size=window)
        assert_bitwise_equal(out, causal, f"causal {window}")
    for window in [(-1, 0), (None, 0), (49, 0)]:
        assert_bitwise_equal(dash.flash_attn_func(q, k, v, window_size=window), causal, f"{window}")


def test_qkvpacked() -> None:
    case = AttentionCase("packed", 2, 40, 40, 4, 4, 64)
    q, k, v = qkv(case)
    want = dash.flash_attn_func(q, k, v, causal=True)
    packed = torch.stack([q, k, v], dim=2)
    assert_bitwise_equal(dash.flash_attn_qkvpacked_func(packed, causal=True), want, "5 dims")
    flat = torch.cat([q, k, v], dim=2)
    out = dash.flash_attn_qkvpacked_func(flat, causal=True, num_heads_q=4)
    assert_bitwise_equal(out, want, "4 dims")
    _, lse = dash.flash_attn_qkvpacked_func(packed, return_lse=True)
    assert lse.shape == (2, 4, 40)
    for bad in (packed[:, :, :2], flat, packed[0]):
        with pytest.raises(ValueError, match=r"^qkv has shape"):
            dash.flash_attn_qkvpacked_func(bad)
    for num_heads_q in (0, 5, 12, 13):
        with pytest.raises(ValueError, match=f"num_heads_q={num_heads_q}"):
            dash.flash_attn_qkvpacked_func(flat, num_heads_q=num_heads_q)


def shaped(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


GOOD = (2, 5, 4, 64)
WRONG_TENSORS = [
    ("rank", (shaped(5, 4, 64), shaped(*GOOD), shaped(*GOOD)), "^q has 3 dimensions"),
    ("rank of k", (shaped(*GOOD), shaped(5, 4, 64), shaped(*GOOD)), "^k has 3 dimensions"),
    ("batch", (shaped(*GOOD), shaped(3, 5, 4, 64), shaped(*GOOD)), "^k has batch 3"),
    ("v rows", (shaped(*GOOD), shaped(*GOOD), shaped(2, 6, 4, 64)), r"^v has \(seqlen, heads\)"),
    ("v heads", (shaped(*GOOD), shaped(*GOOD), shaped(2, 5, 2, 64)), r"^v has \(seqlen, heads\)"),
    ("groups", (shaped(*GOOD), *2 * [shaped(2, 5, 3, 64)]), "^k has 3 heads, which do not divide"),
    ("no heads", (shaped(*GOOD), *2 * [shaped(2, 5, 0, 64)]), "k has 0; at least 1"),
    ("k dim", (shaped(*GOOD), *2 * [shaped(2, 5, 4, 128)]), "^k has head_dim 128"),
    ("v dim", (*2 * [shaped(*GOOD)], shaped(2, 5, 4, 70)), "^v has head_dim 70.*with zeros to 72"),
    ("head dim 50", 3 * [shaped(2, 5, 4, 50)], r"^q has head_dim 50.*maximum 256: pad .* to 56"),
    ("head dim 512", 3 * [shaped(2, 5, 4, 512)], "^q has head_dim 512.*maximum 256$"),
    ("head dim 0", 3 * [shaped(2, 5, 4, 0)], "^q has head_dim 0"),
    ("packed", 3 * [shaped(5, 4, 64)], "flash_attn_varlen_func takes such tensors"),
    ("float32", 3 * [shaped(*GOOD, dtype=torch.float32)], r"^q has dtype torch\.float32"),
    ("float64 v", (*2 * [shaped(*GOOD)], shaped(*GOOD).double()), r"^v has dtype torch\.float64"),
    ("mixed", (shaped(*GOOD), shaped(*GOOD).half(), shaped(*GOOD)), r"^k has dtype torch\.float16"),
    (
        "devices",
        (shaped(*GOOD), shaped(*GOOD).to("meta"), shaped(*GOOD)),
        "^k is on meta, but q is",
    ),
]


@pytest.mark.parametrize(
    "tensors, message", [row[1:] for row in WRONG_TENSORS], ids=[row[0] for row in WRONG_TENSORS]
)
def test_a_wrong_tensor_is_named(tensors: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dash.flash_attn_func(*tensors)


def test_a_non_tensor_is_named() -> None:
    q, k, _ = qkv()
    with pytest.raises(TypeError, match=r"^v must be a torch\.Tensor, not list"):
        dash.flash_attn_func(q, k, [1.0])
    with pytest.raises(TypeError, match=r"^qkv must be a torch\.Tensor"):
        dash.flash_attn_qkvpacked_func(None)


WRONG_OPTIONS = [
    ({"window_size": (3.0, 3)}, r"^window_size=\(3\.0, 3\): a bound is an int"),
    ({"window_size": (-2, 0)}, "a bound is at least 0"),
    ({"window_size": 5}, "^window_size=5 must be a pair"),
    ({"softcap": -1.0}, "^softcap=-1.0 must be 0.0"),
    ({"softcap": float("nan")}, "^softcap=nan must be 0.0"),
    ({"softcap": float("inf")}, "^softcap=inf must be 0.0"),
    ({"softcap": 1e-40}, "^softcap=1e-40 must be 0.0"),
    ({"softcap": 9e-3}, "^softcap=0.009 must be 0.0, which is none, or between 1e-2"),
    ({"softmax_scale": 1e-46}, "^softmax_scale=1e-46 must be between 1e-30"),
    ({"softmax_scale": 1e39}, r"^softmax_scale=1e\+39 must be between"),
    ({"softmax_scale": 0.0}, "^softmax_scale=0.0 must be between"),
    ({"schedule": "shift", "window_size": (3, 3)}, "^schedule='shift' is not legal for a window"),
    ({"schedule": "fastest"}, "^schedule='fastest' is not known; choose 'auto'"),
    ({"schedule": "shortest_first"}, "^schedule='shortest_first' is not legal for a full mask"),
    ({"schedule": "unordered"}, "^schedule='unordered' with deterministic=True"),
    ({"schedule": "band", "deterministic": False}, "^schedule='band' with deterministic=False"),
    ({"sm_margin": -1}, "^sm_margin=-1"),
    ({"sm_margin": 1.5}, "^sm_margin=1.5"),
    ({"qv": torch.zeros(1)}, "^qv=tensor is not supported.*flash-attn-3"),
    ({"q_descale": 1.0}, "^q_descale=1.0"),
    ({"k_descale": 1.0}, "^k_descale=1.0"),
    ({"v_descale": 1.0}, "^v_descale=1.0"),
    ({"attention_chunk": 8}, "^attention_chunk=8"),
    ({"num_splits": 0}, "^num_splits=0"),
    ({"pack_gqa": True}, "^pack_gqa=True"),
]


@pytest.mark.parametrize("options, message", WRONG_OPTIONS, ids=[str(o) for o, _ in WRONG_OPTIONS])
def test_a_wrong_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dash.flash_attn_func(*qkv(), **options)


def test_other_arguments_of_flash_attention_3_at_their_defaults() -> None:
    q, k, v = qkv()
    out = dash.flash_attn_func(
        *(q, k, v),
        **dict.fromkeys(("qv", "q_descale", "k_descale", "v_descale", "pack_gqa")),
        attention_chunk=0,
        num_splits=1,
    )
    assert_bitwise_equal(out, dash.flash_attn_func(q, k, v), "out")


def test_sm_margin_changes_no_bit() -> None:
    q, k, v = qkv()
    out = dash.flash_attn_func(q, k, v, sm_margin=8)
    assert_bitwise_equal(out, dash.flash_attn_func(q, k, v), "out")


def test_operators_refuse_what_the_functions_refuse() -> None:
    q, k, v = qkv()
    good = operator_options((q, k, v, q), False)
    fwd, bwd = torch.ops.dash_attn.fwd, torch.ops.dash_attn.bwd
    bad_tensors = [
        *[(q.float(), k, v), (q, k, v[:, :3]), (q[:, :, :3], k, v), (q[0], k, v), (q, k, v[:1])],
        *[(q[..., :50], k[..., :50], v), (q, k, v[..., :12]), (q[:, :, :0], k, v)],
    ]
    cu = torch.tensor([0, 3], dtype=torch.int32)
    bad_options = [
        *[(6, 0.0), (6, math.nan), (7, -2), (8, -2), (9, -1.0), (9, math.inf), (10, "fastest")],
        *[(10, "shift@0"), (10, "shortest_first"), (11, -1), (0, cu), (1, cu), (2, cu), (3, cu)],
    ]
    calls = [(tensors, good) for tensors in bad_tensors]
    calls += [((q, k, v), (*good[:i], value, *good[i + 1 :])) for i, value in bad_options]
    out, lse = fwd(q, k, v, *good)
    for tensors, options in calls:
        with pytest.raises(ValueError, match="dash: "):
            fwd(*tensors, *options)
        with pytest.raises(ValueError, match="dash: "):
            bwd(out, *tensors, out, lse, None, *options)
        with pytest.raises(ValueError, match="dash: "):  # as torch.compile sees it
            fwd(*(x.to("meta") for x in tensors), *options)
    for wrong in [(out[:1], out, lse, None), (out, out.float(), lse, None)]:
        with pytest.raises(ValueError, match=r"dash: (dout|out) has"):
            bwd(wrong[0], q, k, v, *wrong[1:], *good)
    for wrong in [(out, out, lse.double(), None), (out, out, lse, lse[:, :, :3])]:
        with pytest.raises(ValueError, match=r"dash: d?lse has"):
            bwd(wrong[0], q, k, v, *wrong[1:], *good)


def test_resolve_schedule() -> None:
    for causal in (False, True):
        info = dash.resolve_schedule(GOOD, GOOD, causal)
        legal = legal_schedules(AttentionCase("good", 2, 5, 5, 4, 4, 64, causal=causal))
        assert info.name in legal
        assert info.repeatable and info.reason
        for name in legal:
            info = dash.resolve_schedule(GOOD, GOOD, causal, schedule=name)
            assert info.name == name
            assert info.repeatable and info.batch_invariant and info.device_invariant
    info = dash.resolve_schedule(GOOD, GOOD, deterministic=False)
    assert info.name == "unordered"
    assert not (info.repeatable or info.batch_invariant or info.device_invariant)
    with pytest.raises(ValueError, match="shortest_first"):
        dash.resolve_schedule(GOOD, GOOD, schedule="shortest_first")


GROUPED_Q, GROUPED_K = (2, 5, 12, 64), (2, 5, 2, 64)


def test_parts_of_query_groups() -> None:
    """12 query heads on 2: groups of 6."""
    auto = dash.resolve_schedule(GROUPED_Q, GROUPED_K)
    assert auto.name.endswith("/6") and "6 parts" in auto.reason and not auto.batch_invariant
    unordered = dash.resolve_schedule(
        GROUPED_Q, GROUPED_K, deterministic=False, schedule="unordered/2"
    )
    assert not unordered.repeatable and "deterministic=False" in unordered.reason
    for name in ("band", "band/1", "band/2", "ascending/3", auto.name):
        info = dash.resolve_schedule(GROUPED_Q, GROUPED_K, schedule=name)
        assert info.name == name
        assert info.repeatable and info.batch_invariant and info.device_invariant
    q, k = (torch.zeros(shape, dtype=torch.bfloat16) for shape in (GROUPED_Q, GROUPED_K))
    for name, words in [
        ("band/4", r"cuts the 6 query heads .* into 4 parts.*one of \[1, 2, 3, 6\]"),
        ("band/7", r"into 7 parts.*must divide"),
        ("band/0", "'band/0' is not known"),
        ("band/", "'band/' is not known"),
        ("band/x", "followed by the number of parts"),
        ("auto/2", "'auto/2' is not known"),
        ("unordered/2", "deterministic=False"),
    ]:
        with pytest.raises(ValueError, match=words):
            dash.flash_attn_func(q, k, k, schedule=name)
        assert not dash.is_supported(GROUPED_Q, GROUPED_K, schedule=name)[0]
    assert dash.flash_attn_func(q, k, k, deterministic=False, schedule="unordered/2").shape == (
        q.shape
    )


LONG, SHORT = (2, 640, 4, 64), (2, 128, 4, 64)


@pytest.mark.parametrize(
    "name, q_shape, k_shape, causal, words",
    [
        ("shift", SHORT, LONG, False, "1 Q tiles, and seqlen_k is 640, 5 KV tiles"),
        ("ring", SHORT, LONG, False, "a full mask with at least as many Q tiles as KV tiles"),
        ("symmetric_shift", SHORT, LONG, True, "a causal mask with seqlen_q == seqlen_k"),
        ("symmetric_shift", LONG, LONG, False, "not legal for a full mask"),
        ("mirrored", LONG, LONG, False, "not legal for a full mask"),
        ("shift", LONG, LONG, True, "not legal for a causal mask"),
    ],
)
def test_a_schedule_that_the_shape_does_not_allow(
    name: str, q_shape: tuple[int, ...], k_shape: tuple[int, ...], causal: bool, words: str
) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        dash.resolve_schedule(q_shape, k_shape, causal, schedule=name)
    offered = str(raised.value).split("one of")[1]
    assert "'band'" in offered and f"'{name}'" not in offered
    ok, reason = dash.is_supported(q_shape, k_shape, causal=causal, schedule=name)
    assert not ok and words in reason
    q, k = (torch.zeros(shape, dtype=torch.bfloat16) for shape in (q_shape, k_shape))
    with pytest.raises(ValueError, match=words):
        dash.flash_attn_func(q, k, k, causal=causal, schedule=name)
    with pytest.raises(ValueError, match=f"dash: schedule='{name}'.*legal for"):
        run((q, k, k, q), causal, name)


def test_a_gang_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 KV tiles: shift needs 5 SMs at once; ring, with as many Q tiles, and symmetric_shift 3."""
    from dash import _arguments

    free = 0
    monkeypatch.setattr(_arguments, "free_sms", lambda device, sm_margin: free)
    gangs = [("shift", False, 5), ("ring", False, 3), ("symmetric_shift", True, 3)]
    for name, causal, gang in gangs:
        free = gang
        assert dash.resolve_schedule(LONG, LONG, causal, schedule=name).name == name
        free = gang - 1
        with pytest.raises(ValueError, match=f"needs {gang} SMs at once.*{gang - 1} are") as raised:
            dash.resolve_schedule(LONG, LONG, causal, schedule=name)
        assert "'band'" in str(raised.value)
        assert f"'{name}'" not in str(raised.value).split("one of")[1]


@pytest.mark.parametrize("causal", [False, True])
def test_auto_falls_back_where_its_gang_does_not_fit(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever "auto" is: it fits, and what it promises is true."""
    from dash import _arguments, _schedule

    for free in (1, 3, 132, None):
        monkeypatch.setattr(_arguments, "free_sms", lambda device, sm_margin, free=free: free)
        for seqlen in (256, 640, 4096):
            for heads in (1, 2, 16):
                shape = (1, seqlen, heads, 128)
                info = dash.resolve_schedule(shape, shape, causal)
                sizes = (1, seqlen, seqlen, heads, heads)
                window = (-1, 0 if causal else -1)
                grid = _schedule.make_grid("bf16", 128, window, *sizes, info.name)
                assert _schedule.is_legal(grid)
                assert free is None or _schedule.gang_size(grid) <= free
                assert not (info.device_invariant and _schedule.gang_size(grid) > 1)
                if info.batch_invariant:
                    names = {
                        dash.resolve_schedule((b, *shape[1:]), (b, *shape[1:]), causal).name
                        for b in (1, 2, 3, 8, 64)
                    }
                    assert names == {info.name}


def test_resolve_schedule_on_a_device_without_kernels() -> None:
    with pytest.raises(RuntimeError, match=r"^device='xpu': Hopper GPUs"):
        dash.resolve_schedule(GOOD, GOOD, device="xpu")


def test_auto_is_the_schedule_that_resolve_schedule_names() -> None:
    case = AttentionCase("auto", 1, 512, 512, 4, 4, 64, dtype="fp16", causal=True)
    inputs = case.make_inputs("cpu")
    name = dash.resolve_schedule(inputs[0].shape, inputs[1].shape, True).name
    auto, named = run(inputs, True, "auto"), run(inputs, True, name)
    other = run(inputs, True, "shortest_first")
    assert_bitwise_equal(auto.dq, named.dq, "dq")
    assert not torch.equal(auto.dq, other.dq)


def test_is_supported() -> None:
    assert dash.is_supported(GOOD, GOOD) == (True, "")
    assert dash.is_supported(GOOD, (2, 9, 2, 64), dtype=torch.float16, causal=True) == (True, "")
    for options, word in [
        ({"q_shape": (2, 5, 4, 92), "k_shape": (2, 5, 4, 92)}, "92"),
        ({"dtype": torch.float32}, "float32"),
        ({"window_size": (3, -3)}, "window_size"),
        ({"softcap": -1.0}, "softcap"),
        ({"v_shape": (2, 5, 4, 30)}, "30"),
        ({"schedule": "nothing"}, "nothing"),
        ({"device": "xpu"}, "Hopper"),
        ({"num_sequences": 3}, "flash_attn_func"),
    ]:
        ok, reason = dash.is_supported(**{"q_shape": GOOD, "k_shape": GOOD, **options})
        assert not ok and word in reason, options


def test_is_supported_never_raises() -> None:
    odd = [
        None,
        5,
        "text",
        (),
        (1,),
        (2, 5, 4, "64"),
        (-1, 5, 4, 64),
        (2, 5, 4, 10**30),
        [None] * 4,
    ]
    for shape in odd:
        for arguments in ((shape, GOOD), (GOOD, shape), (GOOD, GOOD, shape or ())):
            ok, reason = dash.is_supported(*arguments)
            assert not ok and reason, arguments
    for name in ("dtype", "device", "window_size", "softcap", "schedule", "num_sequences"):
        for value in ("text", object(), -5, [1, 2, 3]):
            ok, reason = dash.is_supported(GOOD, GOOD, **{name: value})
            assert not ok and reason, (name, value)


@pytest.mark.parametrize(
    "q_shape, sequences, word",
    [
        ((1, 2**30, 1, 64), None, "each dimension must be below"),
        ((2**24, 1, 64, 64), None, "batch * heads * (seqlen / 64 + 1) must be below 1073741824"),
        ((2**29, 128, 64), 3, "heads * (rows / 64 + sequences)"),
        ((128, 8, 64), 2**28, "268435456 sequences"),
    ],
)
def test_sizes_beyond_the_kernels_counters(
    q_shape: tuple[int, ...], sequences: int | None, word: str
) -> None:
    ok, reason = dash.is_supported(q_shape, q_shape, num_sequences=sequences)
    assert not ok and word in reason
    with pytest.raises(ValueError, match=r"split the batch|each dimension"):
        dash.resolve_schedule(q_shape, q_shape, num_sequences=sequences)
    if sequences is None:  # meta tensors take no memory
        q = torch.empty(q_shape, dtype=torch.bfloat16, device="meta")
        with pytest.raises(ValueError, match=r"split the batch|each dimension"):
            dash.flash_attn_func(q, q, q)


def test_no_kernel_for_a_gpu_that_is_not_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    ok, reason = dash.is_supported(GOOD, GOOD, device="cuda")
    assert not ok and "NVIDIA A100" in reason and "8.0" in reason and "9.0" in reason


def test_no_kernels_were_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from dash import _ops

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(_ops, "cuda_library_error", "this was built without CUDA kernels")
    ok, reason = dash.is_supported(GOOD, GOOD, device="cuda")
    assert not ok and "built without CUDA kernels" in reason and "nvcc" in reason


def test_schedules_and_head_dims() -> None:
    assert dash.schedules() == [
        *["ascending", "shortest_first", "descending", "shift", "symmetric_shift"],
        *["band", "mirrored", "comb", "ring", "unordered"],
    ]
    assert dash.supported_head_dims() == [64, 96, 128, 192, 256]


@pytest.mark.parametrize("scale", [0.0, -0.1, float("nan"), float("inf"), 1e-50])
def test_softmax_scale_must_be_positive_and_finite(scale):
    q = torch.zeros(1, 4, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"^softmax_scale="):
        dash.flash_attn_func(q, q, q, softmax_scale=scale)


def test_a_tensor_as_softmax_scale_is_refused():
    q = torch.zeros(1, 4, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="no gradient is computed for it"):
        dash.flash_attn_func(q, q, q, softmax_scale=torch.nn.Parameter(torch.tensor(0.1)))


def test_nan_is_not_swallowed():
    q, k, v = torch.randn(3, 1, 8, 1, 64).to(torch.bfloat16)
    q[0, 3, 0, 5] = float("nan")
    out, lse = dash.flash_attn_func(q, k, v, return_lse=True)
    rows = torch.arange(8) == 3
    assert out[0, rows].isnan().all() and lse[0, 0, rows].isnan().all()
    assert not out[0, ~rows].isnan().any()


def test_auto_takes_a_gang_for_few_waves_and_says_that_it_depends_on_the_batch():
    few = dash.resolve_schedule((1, 2048, 8, 128), (1, 2048, 8, 128), causal=False)
    assert (few.name, few.batch_invariant) == ("ring", False)
    many = dash.resolve_schedule((16, 2048, 8, 128), (16, 2048, 8, 128), causal=False)
    assert (many.name, many.batch_invariant) == ("band", False)
    large = dash.resolve_schedule((1, 16384, 16, 128), (1, 16384, 16, 128), causal=False)
    assert (large.name, large.batch_invariant) == ("band", True)
    causal = dash.resolve_schedule((1, 8192, 4, 128), (1, 8192, 4, 128), causal=True)
    assert (causal.name, causal.batch_invariant) == ("mirrored", True)
    short = dash.resolve_schedule((4, 1024, 16, 128), (4, 1024, 16, 128), causal=True)
    assert (short.name, short.batch_invariant) == ("mirrored", False)
    grouped = dash.resolve_schedule((1, 4096, 32, 128), (1, 4096, 8, 128), causal=True)
    assert (grouped.name, grouped.batch_invariant) == ("band", True)
    parts = dash.resolve_schedule((1, 8192, 32, 128), (1, 8192, 8, 128), causal=True)
    assert (parts.name, parts.batch_invariant) == ("band/2", False)


def test_no_tile_is_smaller_than_the_size_limits_assume():
    from dash import _problem, _schedule

    for head_dim in dash.supported_head_dims():
        for window in _problem.MASKS.values():
            for packed in (False, True):
                for config in (_schedule.bwd_config, _schedule.fwd_config):
                    tiles = config("bf16", head_dim, window, packed=packed)
                    assert min(tiles.block_m, tiles.block_n) >= _problem.SMALLEST_TILE
