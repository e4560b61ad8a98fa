"""The README's table of what is supported: `python -m bench.support --write README.md`.

Made of the constants that the checks use (dash/_problem.py), with calls for which
tests/test_readme.py asks dash.is_supported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dash import _problem


@dataclass(frozen=True)
class Row:
    """A line of the README's table, with calls of is_supported that prove both of its columns."""

    feature: str
    supported: str
    refused: str
    yes: tuple[dict[str, Any], ...] = ()
    no: tuple[dict[str, Any], ...] = ()


_SHAPE = (2, 256, 4, 64)
_BASE = {"q_shape": _SHAPE, "k_shape": _SHAPE}


def _schedule_row(mask: str, *, is_packed: bool) -> Row:
    names = _problem.supporting_schedules(mask, is_packed=is_packed)
    others = [name for name in _problem.SCHEDULES if name not in names]
    ordered = [name for name in names if name != "unordered"]
    packed = {"q_shape": _SHAPE[1:], "k_shape": _SHAPE[1:], "num_sequences": 3} if is_packed else {}
    base = {**_BASE, **packed, "window_size": _problem.MASKS[mask]}
    if mask == "window":
        base["window_size"] = (20, 10)

    def text(given: Sequence[str]) -> str:
        return ", ".join(f"`{name}`" for name in given)

    return Row(
        f"schedule, {mask} mask" + (", packed" if is_packed else ""),
        text(["auto", *ordered]),
        text(others),
        tuple({**base, "schedule": name} for name in ["auto", *ordered]),
        tuple({**base, "schedule": name} for name in others),
    )


def rows() -> list[Row]:
    """What is supported; each example is one call of is_supported."""
    step, largest = _problem.HEAD_DIM_STEP, _problem.MAX_HEAD_DIM
    dtypes = [str(dtype).removeprefix("torch.") for dtype in _problem.DTYPE_NAMES]

    def shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], **rest: Any) -> dict:
        return {"q_shape": q, "k_shape": k, "v_shape": v, **rest}

    def dims(q: int, v: int) -> dict:
        return shapes((2, 256, 4, q), (2, 256, 2, q), (2, 256, 2, v))

    packed = shapes((500, 4, 64), (600, 2, 64), (600, 2, 64), num_sequences=7)
    return [
        Row(
            "dtype",
            ", ".join(dtypes),
            "float32 (except under `torch.autocast`), float64, fp8",
            tuple({**_BASE, "dtype": dtype} for dtype in _problem.DTYPE_NAMES),
            tuple({**_BASE, "dtype": dtype} for dtype in (torch.float32, torch.float64)),
        ),
        Row(
            "head dim",
            f"multiples of {step} up to {largest}; v may have another one than q and k",
            "others, with the padding that helps",
            tuple(dims(d, v) for d in range(step, largest + 1, step) for v in (d, 128)),
            tuple(dims(*d) for d in ((50, 50), (64, 4), (largest + step, 64), (64, 2 * largest))),
        ),
        Row(
            "heads",
            "MHA, GQA, MQA: heads_k divides heads",
            "head counts that do not divide",
            tuple(
                shapes((1, 9, h, 64), *2 * [(1, 9, hk, 64)]) for h, hk in ((6, 6), (6, 2), (6, 1))
            ),
            tuple(shapes((1, 9, h, 64), *2 * [(1, 9, hk, 64)]) for h, hk in ((6, 4), (2, 4))),
        ),
        Row(
            "mask",
            "none; causal and windows (left, right), aligned to the bottom right",
            "attention_chunk",
            tuple(
                {**_BASE, "window_size": w} for w in ((-1, -1), (-1, 0), (64, 0), (3, 5), (-1, 9))
            ),
        ),
        Row(
            "lengths",
            "any seqlen_q and seqlen_k, also different, also 0",
            f"heads * tiles of 64 rows from {_problem.MAX_TILES:,} on",
            tuple(
                shapes((2, q, 4, 64), *2 * [(2, k, 4, 64)]) for q, k in ((5, 700), (700, 5), (0, 0))
            ),
            (shapes(*3 * [(2**24, 1, 64, 64)]),),
        ),
        Row(
            "packed",
            "`flash_attn_varlen_func`: cu_seqlens, seqused, empty sequences",
            "cu_seqlens that are not int32",
            (packed, {**packed, "causal": True}, {**packed, "num_sequences": 0}),
            ({**packed, "num_sequences": None}, {**packed, "num_sequences": 2**30}),
        ),
        Row(
            "score change",
            "`softmax_scale`, `softcap`",
            "qv, descales",
            tuple({**_BASE, "softcap": softcap} for softcap in (0.0, 15.0, 50)),
            tuple({**_BASE, "softcap": softcap} for softcap in (-1.0, float("inf"))),
        ),
        *(
            _schedule_row(mask, is_packed=is_packed)
            for is_packed in (False, True)
            for mask in _problem.MASKS
        ),
        Row(
            "`deterministic=False`",
            "the unordered kernel",
            "the name of an ordered schedule",
            ({**_BASE, "deterministic": False},),
            ({**_BASE, "deterministic": False, "schedule": "band"},),
        ),
    ]


BEGIN = "<!-- support table: begin, written by python -m bench.support --write README.md -->"
END = "<!-- support table: end -->"


def table() -> str:
    """`rows` as Markdown, between its markers."""
    lines = ["| | supported | refused with an error that says so |", "|---|---|---|"]
    lines += [f"| {row.feature} | {row.supported} | {row.refused} |" for row in rows()]
    return "\n".join([BEGIN, *lines, END])


def main(arguments: Sequence[str]) -> None:
    """`--write FILE` replaces the table in the file; without, it is printed."""
    if not arguments:
        print(table())
        return
    option, name = arguments
    text = Path(name).read_text()
    if option != "--write" or BEGIN not in text or END not in text:
        sys.exit("use: python -m bench.support [--write FILE], a file with the table's markers")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    Path(name).write_text(before + table() + after)


if __name__ == "__main__":
    main(sys.argv[1:])
