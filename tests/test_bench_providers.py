"""The benchmark's FlashAttention-3 provider, as far as a machine without it or a GPU can tell."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench import fa3, measure
from bench.bench_attention import parse_arguments
from bench.providers import PROVIDERS, Inputs, Passes
from bench.shapes import AttentionShape

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
