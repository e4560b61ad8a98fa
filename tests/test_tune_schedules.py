"""The tuning script's own logic; the measuring needs a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import tune_schedules


def test_shapes_are_the_ones_to_be_tuned() -> None:
    shapes = tune_schedules.tuning_shapes([64, 128])
    assert len(set(shapes)) == len(shapes)
    for causal in (False, True):
        for head_dim in (64, 128):
            some = [s for s in shapes if s.causal == causal and s.head_dim == head_dim]
            tokens = {s.seqlen_q for s in some if s.batch * s.seqlen_q == 16_384}
            assert tokens >= {512, 1024, 2048, 4096, 8192, 16_384}
            assert {s.num_heads for s in some if s.batch == 1} >= {1, 2, 4, 8, 16}
            assert any((s.num_heads, s.num_heads_k) == (32, 8) for s in some)


def test_the_report_counts_where_auto_loses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    shape = {"batch": 1, "seqlen_q": 512, "seqlen_k": 512, "num_heads": 4, "num_heads_k": 2}
    shape |= {"head_dim": 64, "causal": True, "auto": "band"}
    times = {"unordered": 0.8, "auto": 1.005, "band": 1.0, "comb": 1.2}
    slower = {**times, "comb@8": 0.9}
    noisy = {**shape, "ms": slower, "noise": 0.2}
    table = {"shapes": [{**shape, "ms": times}, {**shape, "ms": slower}, noisy]}
    assert tune_schedules.best_of(table["shapes"][1]) == ("comb@8", 0.9)
    assert tune_schedules.report(table) == 1
    assert "comb@8" in capsys.readouterr().out
    file = tmp_path / "table.json"
    file.write_text(json.dumps(table))
    assert tune_schedules.main(["--print", "--out", str(file)]) == 1


def test_candidates_are_legal_and_name_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    import dash

    on_cpu = dash.is_supported
    monkeypatch.setattr(dash, "is_supported", lambda *a, **k: on_cpu(*a, **{**k, "device": "cpu"}))
    shape = next(s for s in tune_schedules.tuning_shapes([64]) if s.causal and s.num_heads == 4)
    names = tune_schedules.candidates(shape, (2, 4, 8))
    assert {"unordered", "auto", "band", "band@2", "mirrored@4", "symmetric_shift"} <= set(names)
    assert "band@8" not in names and "shift" not in names
    assert not [name for name in tune_schedules.candidates(shape, ()) if "@" in name]
    grouped = next(
        s for s in tune_schedules.tuning_shapes([64]) if s.causal and s.num_heads != s.num_heads_k
    )
    assert {"band/2", "mirrored/4", "band@8"} <= set(tune_schedules.candidates(grouped, (8,)))
    short = next(s for s in tune_schedules.tuning_shapes([64]) if s.causal and s.seqlen_q == 256)
    assert {"comb@64", "comb@128"} <= set(tune_schedules.candidates(short, (16,)))


def test_noise_is_what_equal_configurations_differ_by() -> None:
    run = {"auto": 1.02, "band": 1.0, "comb": 2.0}
    assert tune_schedules.noise_of([run], "band") == pytest.approx(0.02)
    slower = {name: 1.1 * ms for name, ms in run.items()}
    assert tune_schedules.noise_of([run, slower, run], "band") == pytest.approx(0.1)


def test_a_shape_is_measured_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of the repeats; without other section sizes when none are asked for."""
    import dash

    on_cpu, resolve = dash.is_supported, dash.resolve_schedule
    monkeypatch.setattr(dash, "is_supported", lambda *a, **k: on_cpu(*a, **{**k, "device": "cpu"}))
    monkeypatch.setattr(
        dash, "resolve_schedule", lambda *a, **k: resolve(*a, **{**k, "device": "cpu"})
    )
    factors = iter([1.0, 1.5, 1.02])

    def measure(shape: Any, providers: list[Any], *_: Any) -> list[SimpleNamespace]:
        ms = next(factors)
        return [
            SimpleNamespace(provider=p.name, note="", timing=SimpleNamespace(median_ms=ms))
            for p in providers
        ]

    monkeypatch.setattr(tune_schedules, "measure", measure)
    shape = tune_schedules.tuning_shapes([64])[0]
    row = tune_schedules.measure_shape(shape, tune_schedules.Options(), (), 3)
    assert set(row["ms"].values()) == {1.02} and not [name for name in row["ms"] if "@" in name]
    assert row["noise"] == pytest.approx(0.5 / 1.02, abs=1e-4)
