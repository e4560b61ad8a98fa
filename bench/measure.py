"""Check and time providers on one shape: what bench_attention and gpu_report both do."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from bench.check import MAX_RELATIVE_ERROR, check_gradients, check_output, fp32_attention
from bench.flops import tflops
from bench.providers import Inputs, Passes, Provider, make_inputs
from bench.shapes import AttentionShape
from bench.timing import Timing, time_interleaved


@dataclass(frozen=True)
class Options:
    """How to time. Budget and rounds as in timing.time_interleaved."""

    dtype: torch.dtype = torch.bfloat16
    budget_ms: float = 400.0
    max_rounds: int = 40
    flush_l2: bool = False
    repeats: int = 3  # backward passes compared bit for bit


@dataclass(frozen=True)
class Row:
    """One provider on one shape in one direction. `note` says why there is no time, or what is
    wrong; `is_repeatable` is None in the forward pass."""

    direction: str
    shape: AttentionShape
    provider: str
    timing: Timing | None
    relative_error: float | None
    is_repeatable: bool | None
    note: str = ""

    @property
    def is_right(self) -> bool:
        return self.relative_error is not None and self.relative_error <= MAX_RELATIVE_ERROR

    @property
    def tflops(self) -> float | None:
        if self.timing is None:
            return None
        return tflops(self.shape.flops(backward=self.direction == "bwd"), self.timing.median_ms)

    def ratio_to(self, reference: Row | None) -> float | None:
        """Speed relative to `reference`: above 1 is faster. None if either is missing or wrong."""
        if reference is None or not (self.is_right and reference.is_right):
            return None
        if self.timing is None or reference.timing is None:
            return None
        return reference.timing.median_ms / self.timing.median_ms

    def as_dict(self) -> dict[str, object]:
        """Flat and JSON-ready."""
        return {
            "pass": self.direction,
            **{
                field.name: getattr(self.shape, field.name)
                for field in dataclasses.fields(self.shape)
                if field.name not in ("sequences", "head_dim_v")
            },
            "head_dim_v": self.shape.dim_v,
            "tokens": self.shape.tokens,
            "packed": bool(self.shape.sequences),
            "provider": self.provider,
            "ms": self.timing and self.timing.median_ms,
            "p20_ms": self.timing and self.timing.p20_ms,
            "p80_ms": self.timing and self.timing.p80_ms,
            "rounds": self.timing and self.timing.rounds,
            "tflops": self.tflops,
            "relative_error": self.relative_error,
            "is_repeatable": self.is_repeatable,
            "note": self.note,
        }


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _prepare(
    providers: list[Provider], shape: AttentionShape, inputs: Inputs
) -> tuple[dict[str, Passes], dict[str, str]]:
    """Launches of the providers that can run the shape, and the reasons of the others."""
    ready: dict[str, Passes] = {}
    reasons: dict[str, str] = {}
    for provider in providers:
        reason = provider.why_not(shape)
        if reason is None:
            try:
                passes = provider.prepare(shape, inputs)
                passes.backward()  # some libraries refuse a shape only here
                ready[provider.name] = passes
                continue
            except (RuntimeError, ValueError, TypeError) as error:
                reason = _first_line(error)
        reasons[provider.name] = f"unavailable: {reason}"
    return ready, reasons


def _repeats_equal(passes: Passes, first: tuple[torch.Tensor, ...], repeats: int) -> bool:
    """True if further backward passes give the bytes of `first`."""
    for _ in range(repeats - 1):
        again = passes.backward()
        if not all(
            torch.equal(a.view(torch.int16), b.view(torch.int16))
            for a, b in zip(first, again, strict=True)
        ):
            return False
    return True


def measure(
    shape: AttentionShape, providers: list[Provider], directions: list[str], options: Options
) -> list[Row]:
    """One row per direction and provider, in that order."""
    inputs = make_inputs(shape, options.dtype)
    expected_out, *expected_gradients = fp32_attention(shape, inputs)
    ready, reasons = _prepare(providers, shape, inputs)
    rows: list[Row] = []
    for direction in directions:
        taking_part = [provider for provider in providers if direction in provider.directions]
        launches = {}
        errors: dict[str, float] = {}
        repeatable: dict[str, bool | None] = {}
        for provider in taking_part:
            passes = ready.get(provider.name)
            if passes is None:
                continue
            if direction == "fwd":
                launches[provider.name] = passes.forward
                errors[provider.name] = check_output(shape, passes.forward(), expected_out)
                repeatable[provider.name] = None
            else:
                launches[provider.name] = passes.backward
                # Correctness: a provider may write every launch's gradients to the same buffers;
                # without a copy these would be compared with themselves.
                gradients = tuple(grad.clone() for grad in passes.backward())
                errors[provider.name] = check_gradients(shape, gradients, tuple(expected_gradients))
                repeatable[provider.name] = _repeats_equal(passes, gradients, options.repeats)
        timings = time_interleaved(
            launches,
            budget_ms=options.budget_ms,
            max_rounds=options.max_rounds,
            flush_l2=options.flush_l2,
        )
        for provider in taking_part:
            row = Row(
                direction=direction,
                shape=shape,
                provider=provider.name,
                timing=timings.get(provider.name),
                relative_error=errors.get(provider.name),
                is_repeatable=repeatable.get(provider.name),
                note=reasons.get(provider.name, ""),
            )
            rows.append(dataclasses.replace(row, note=row.note or _verdict(row, provider)))
    return rows


def _verdict(row: Row, provider: Provider) -> str:
    if not row.is_right:
        return f"WRONG: relative error {row.relative_error:.3g}"
    if provider.deterministic and row.is_repeatable is False:
        return "NOT REPEATABLE"
    return ""
