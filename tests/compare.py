"""Comparisons whose messages carry the numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from .reference import Results

# What float32 arithmetic leaves behind: a little everywhere, and more than the 16-bit yardstick's
# own error where a gradient is zero because dP - dPsum cancels.
_FLOOR, _FLOOR_OF_ZERO = 1e-5, 5e-5
_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _different_bits(got: Tensor, want: Tensor) -> Tensor:
    """Which elements differ in their bytes, of tensors of one shape and dtype."""
    integer = _INTEGER[got.element_size()]
    return got.contiguous().view(integer) != want.contiguous().view(integer)


def assert_bitwise_equal(got: Tensor, want: Tensor, name: str) -> None:
    """Equal bytes; the message names the first coordinate that differs."""
    assert got.shape == want.shape and got.dtype == want.dtype, f"{name}: shape or dtype differ"
    different = _different_bits(got, want)
    if bool(different.any()):
        where = tuple(different.nonzero()[0].tolist())
        raise AssertionError(
            f"{name}: {int(different.sum())} of {different.numel()} elements differ in bits, first "
            f"at {where}: {got[where].item()!r} and {want[where].item()!r}"
        )


def results_equal(got: Results, want: Results) -> Tensor:
    """Whether out, lse, dq, dk and dv have equal bytes: a bool on their device, not waited for."""
    pairs = zip(got.items(), want.items(), strict=True)
    return ~torch.stack([_different_bits(a, b).any() for (_, a), (_, b) in pairs]).any()


def assert_results_equal(got: Results, want: Results, what: str) -> None:
    """Equal bytes of out, lse, dq, dk and dv. One wait for the device if they are."""
    pairs = list(zip(got.items(), want.items(), strict=True))
    alike = all(a.shape == b.shape and a.dtype == b.dtype for (_, a), (_, b) in pairs)
    if alike and bool(results_equal(got, want)):
        return
    for (name, a), (_, b) in pairs:
        assert_bitwise_equal(a, b, f"{what}: {name}")


def _largest(values: Tensor) -> Tensor:
    """The largest one in float64, 0 of none."""
    return values.amax().double() if values.numel() else values.new_zeros(()).double()


def _errors(got: Tensor, want: Tensor) -> tuple[Tensor, Tensor]:
    """Largest and root-mean-square difference, on their device."""
    difference = (got.to(want.dtype) - want).abs()
    if difference.numel() == 0:
        return (_largest(difference),) * 2
    return _largest(difference), difference.square().mean().sqrt().double()


def _errors_of_lse(got: Tensor, want: Tensor) -> tuple[Tensor, ...]:
    """Where both are finite: largest difference and largest value; and whether that is everywhere
    where the other one is."""
    blind = torch.isinf(want)
    difference = (got.to(want.dtype) - want).masked_fill(blind, 0.0).abs()
    alike = (torch.isinf(got) == blind).all()
    return _largest(difference), _largest(want.masked_fill(blind, 0.0).abs()), alike.double()


def _statistics(got: Results, exact: Results, plain: Results) -> dict[str, list[float]]:
    """The numbers of each result that its bounds are made of. One wait for the device for all."""
    numbers: dict[str, tuple[Tensor, ...]] = {}
    for name, value in got.items():
        want = getattr(exact, name)
        if name == "lse":
            numbers[name] = _errors_of_lse(value, want)
            continue
        numbers[name] = (
            *_errors(value, want),
            *_errors(getattr(plain, name), want),
            *_errors(want.to(value.dtype), want),
            _largest(want.abs()),
            torch.isfinite(value).all().double(),
        )
    values = iter(torch.stack([x for group in numbers.values() for x in group]).tolist())
    return {name: [next(values) for _ in group] for name, group in numbers.items()}


def assert_close_to_reference(got: Results, exact: Results, plain: Results, what: str) -> None:
    """The field's rule: no more than twice the error of plain PyTorch in the same dtype, both
    against the oracle; for the largest error and for the root mean square."""
    for name, numbers in _statistics(got, exact, plain).items():
        if name == "lse":
            # float32 on both sides: only the order of summation differs.
            largest, magnitude, alike = numbers
            assert alike, f"{what}: lse is -inf in other rows"
            bound = 1e-5 + 4e-6 * magnitude
            assert largest <= bound, f"{what}: lse is off by {largest}, allowed {bound}"
            continue
        errors, plain_errors, rounding = numbers[0:2], numbers[2:4], numbers[4:6]
        magnitude, is_finite = numbers[6:]
        assert is_finite, f"{what}: {name} is not finite"
        floor = _FLOOR_OF_ZERO if magnitude < 1e-6 else _FLOOR
        for kind, error, plain_error, unavoidable in zip(
            ("largest", "rms"), errors, plain_errors, rounding, strict=True
        ):
            bound = 2.0 * plain_error + unavoidable + floor
            assert error <= bound, (
                f"{what}: {name} has {kind} error {error:.3e}; plain PyTorch has "
                f"{plain_error:.3e}, allowed {bound:.3e}"
            )
