"""The benchmark's FlashAttention-3 provider, as far as a machine without it or a GPU can tell."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import dash
from bench import check, fa3, measure, overhead, plot
from bench.bench_attention import chosen_shapes, parse_arguments
from bench.providers import PROVIDERS, Inputs, Passes, make_inputs
from bench.shapes import OTHER_SHAPES, AttentionShape, packed
from bench.timing import Timing

SHAPE = AttentionShape(1, 4, 4, 2, 1, 8, causal=True)


def operators(monkeypatch: pytest.MonkeyPatch, **functions: object) -> None:
    """Pretends that torch.ops.flash_attn_3 holds just these functions."""
    monkeypatch.setattr(torch.ops, "flash_attn_3", SimpleNamespace(**functions), raising=False)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine on which no source of the operators is installed."""

    def not_installed(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    operators(monkeypatch)
    monkeypatch.setattr(importlib.metadata, "distribution", not_installed)
    monkeypatch.setattr(sys, "path", [])
    fa3.use_library(None)
    yield monkeypatch
    fa3.use_library(None)


def reason() -> str:
    answer = PROVIDERS["fa3"].why_not(SHAPE)
    assert answer is not None
    assert PROVIDERS["fa3-det"].why_not(SHAPE) == answer
    return answer


def test_nothing_installed(bare: pytest.MonkeyPatch) -> None:
    for way_out in ("flash_attn_interface", "xformers 0.0.34", "--fa3-library"):
        assert way_out in reason()


def test_named_library_is_missing(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fa3.use_library(tmp_path / "none.so")
    assert f"{tmp_path}/none.so: no such file" in reason()


def test_named_library_does_not_load(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "text.so"
    library.write_text("no library")
    fa3.use_library(library)
    assert f"{library} does not load: {library}: " in reason()


def test_library_without_the_operators(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "other.so"
    library.touch()
    bare.setattr(torch.ops, "load_library", lambda path: None)
    fa3.use_library(library)
    assert "registers no torch.ops.flash_attn_3" in reason()


def test_xformers_without_the_library(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = SimpleNamespace(version="0.0.1", locate_file=lambda name: tmp_path / name)
    bare.setattr(importlib.metadata, "distribution", lambda name: package)
    assert reason().startswith("xformers 0.0.1 has no ")


def test_library_in_xformers(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "xformers/flash_attn_3/_C.so"
    library.parent.mkdir(parents=True)
    library.touch()
    package = SimpleNamespace(version="0.0.34", locate_file=lambda name: tmp_path / name)
    bare.setattr(importlib.metadata, "distribution", lambda name: package)
    loaded: list[str] = []

    def load(path: str) -> None:
        loaded.append(path)
        operators(bare, fwd=None, bwd=None)

    bare.setattr(torch.ops, "load_library", load)
    for name in ("fa3", "fa3-det"):
        assert PROVIDERS[name].why_not(SHAPE) is None
    assert loaded == [str(library)]


def test_broken_interface(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "flash_attn_interface.py").write_text("import flash_attn_3._C\n")
    bare.setattr(sys, "path", [str(tmp_path)])
    assert "flash_attn_interface does not import" in reason()


def test_option_names_the_library() -> None:
    assert parse_arguments([]).fa3_library is None
    assert parse_arguments(["--fa3-library", "x.so"]).fa3_library == Path("x.so")


@pytest.mark.parametrize("name", ["fa3", "fa3-det"])
def test_arguments_of_the_operators(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    calls: dict[str, dict[str, object]] = {}
    gradients: list[torch.Tensor] = []

    def fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> tuple:
        calls["fwd"] = options
        return q + 1, torch.zeros(1), None, None

    def bwd(*tensors: torch.Tensor, **options: object) -> tuple:
        calls["bwd"] = options
        gradients[:] = [options.pop(grad) for grad in ("dq", "dk", "dv")]
        assert torch.equal(tensors[4], inputs.q + 1)
        return (*gradients, *[None] * 5)

    operators(monkeypatch, fwd=fwd, bwd=bwd)
    q, k = torch.ones(1, 4, 2, 8), torch.ones(1, 4, 1, 8)
    inputs = Inputs(q=q, k=k, v=k, dout=q)
    passes = PROVIDERS[name].prepare(SHAPE, inputs)
    assert torch.equal(passes.forward(), q + 1)
    results = passes.backward()
    assert [grad.shape for grad in results] == [q.shape, k.shape, k.shape]
    assert all(a is b for a, b in zip(results, gradients))
    common = {"softmax_scale": inputs.softmax_scale, "is_causal": True}
    assert calls["fwd"] == {**common, "num_splits": 1}
    assert calls["bwd"] == {**common, "deterministic": name == "fa3-det"}


@pytest.mark.parametrize("shape", OTHER_SHAPES[-4:], ids=str)
def test_windows_and_packs_reach_fa3(
    monkeypatch: pytest.MonkeyPatch, shape: AttentionShape
) -> None:
    seen: list[dict[str, object]] = []

    def fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> tuple:
        seen.append(options)
        return q, torch.zeros(1)

    operators(monkeypatch, fwd=fwd)
    cu_seqlens = torch.zeros(1) if shape.sequences else None
    q = torch.ones(1, 4, 2, 8)
    PROVIDERS["fa3"].prepare(shape, Inputs(q=q, k=q, v=q, dout=q, cu_seqlens=cu_seqlens))
    (options,) = seen
    assert options.get("cu_seqlens_q") is cu_seqlens
    if shape.sequences:
        assert options["is_causal"] and options["max_seqlen_q"] == max(shape.sequences)
    else:
        window = options["window_size_left"], options["window_size_right"]
        assert window == (shape.window_left, 0) and not options["is_causal"]


@pytest.mark.parametrize("shape", OTHER_SHAPES, ids=str)
def test_every_shape_is_supported_and_counted(shape: AttentionShape) -> None:
    supported, reason = dash.is_supported(shape.q_shape, shape.k_shape, **shape.options)
    assert supported, reason
    forward, backward = shape.flops(backward=False), shape.flops(backward=True)
    assert 2.4 * forward <= backward <= 2.7 * forward
    torch_why = PROVIDERS["cudnn"].why_not(shape)
    assert bool(torch_why) == bool(shape.sequences or shape.window_left >= 0)


SMALL = [
    AttentionShape(2, 9, 12, 4, 2, 16, True),
    AttentionShape(2, 12, 12, 2, 1, 16, True, head_dim_v=8, window_left=3),
    AttentionShape(1, 12, 12, 2, 2, 8, False, window_left=2),
    packed([7, 0, 20], 4, 2, 16, "small"),
]


@pytest.mark.parametrize("shape", SMALL, ids=str)
@pytest.mark.parametrize("name", ["dash", "dash-unordered"])
def test_dash_is_right_on_the_cpu_path(
    monkeypatch: pytest.MonkeyPatch, shape: AttentionShape, name: str
) -> None:
    """The provider's calls and the benchmark's own reference, which knows every kind of shape."""
    randn, tensor = torch.randn, torch.tensor
    generator = SimpleNamespace(manual_seed=lambda seed: None)
    monkeypatch.setattr(torch, "Generator", lambda device: generator)
    monkeypatch.setattr(torch, "randn", lambda size, dtype, **_: randn(size, dtype=dtype))
    monkeypatch.setattr(torch, "tensor", lambda data, dtype, **_: tensor(data, dtype=dtype))
    inputs = make_inputs(shape, torch.bfloat16)
    expected_out, *expected = check.fp32_attention(shape, inputs)
    passes = PROVIDERS[name].prepare(shape, inputs)
    assert check.check_output(shape, passes.forward(), expected_out) < 0.02
    assert check.check_gradients(shape, passes.backward(), tuple(expected)) < 0.02


def test_presets_and_bars(tmp_path: Path) -> None:
    for preset in ("gqa", "few-heads", "train", "shapes"):
        assert chosen_shapes(parse_arguments(["--preset", preset]))
    with pytest.raises(ValueError, match="--seqlens"):
        chosen_shapes(parse_arguments(["--preset", "gqa", "--seqlens", "5"]))
    rows = [
        measure.Row("bwd", shape, name, Timing(1.0, 1.0, 1.0, 1), 0.001, True, note).as_dict()
        for shape in OTHER_SHAPES[:2]
        for name, note in (("dash", ""), ("fa3", "WRONG: 1"))
    ]
    shapes, speeds = plot.bars(rows, "bwd")
    assert len(shapes) == 2 and list(speeds) == ["dash"] and min(speeds["dash"]) > 0
    pytest.importorskip("matplotlib")
    plot.draw(rows, "title", tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_kernel_times_are_booked_by_part() -> None:
    events = [
        ("void dash::bwd::preprocess_kernel<...>", 40.0),
        ("void dash::bwd::postprocess_kernel<...>", 20.0),
        ("Memset (Device)", 2.0),
        ("void dash::bwd::kernel<...>", 1000.0),
        ("void dash::bwd::kernel<...>", 1010.0),
    ]
    parts = overhead.parts_from_events(events, calls=2)
    assert parts == {"main": 1005.0, "memset": 1.0, "postprocess": 10.0, "preprocess": 20.0}


def test_reused_buffers_do_not_hide_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward that writes other bits into the same buffers each time is not repeatable."""
    buffer = torch.zeros(1, 4, 2, 8, dtype=torch.bfloat16)

    def backward() -> tuple[torch.Tensor, ...]:
        buffer.add_(1)
        return (buffer, buffer, buffer)

    provider = PROVIDERS["fa3-det"]
    passes = Passes(forward=lambda: buffer, backward=backward)
    monkeypatch.setattr(measure, "make_inputs", lambda *_: None)
    monkeypatch.setattr(measure, "fp32_attention", lambda *_: (buffer.float(),) * 4)
    monkeypatch.setattr(measure, "_prepare", lambda *_: ({provider.name: passes}, {}))
    monkeypatch.setattr(measure, "time_interleaved", lambda *_, **__: {})
    monkeypatch.setattr(measure, "check_gradients", lambda *_: 0.0)
    (row,) = measure.measure(SHAPE, [provider], ["bwd"], measure.Options())
    assert row.is_repeatable is False
    assert row.note == "NOT REPEATABLE"
