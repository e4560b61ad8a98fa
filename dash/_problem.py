"""What a call asks for, without its tensors; and what is supported.

The one source of that: the public functions, the operators on the CPU, `is_supported` and the
README's table read it from here. The C++ operators (csrc/api/problem.cpp) check the same.
Every message names the argument, its value, what is supported, and where it helps the way out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import _schedule

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}

# Read once: torch.compile cannot trace calls into the extension.
SCHEDULES = tuple(_schedule.schedules())
HEAD_DIMS = tuple(_schedule.supported_head_dims())  # compiled; others run in the next larger one
MAX_HEAD_DIM = max(HEAD_DIMS)
HEAD_DIM_STEP = 8  # 16 bytes, what the copy engine moves

# Counts that the kernels hold in 32 bits; the smallest tile of either pass has 64 rows.
_MAX_ROWS = (2**31 - 1) // 2
MAX_TILES = 2**30
SMALLEST_TILE = 64

Shape = tuple[int, ...]
Window = tuple[int, int]  # (left, right), inclusive; -1 is no limit

MASKS: dict[str, Window] = {"full": (-1, -1), "causal": (-1, 0), "window": (0, 0)}
_LEGAL = {
    (mask, is_packed): [n for n in SCHEDULES if _schedule.supports(n, window, is_packed)]
    for mask, window in MASKS.items()
    for is_packed in (False, True)
}


def mask_name(window: Window) -> str:
    """ "full", "causal" or "window"."""
    left, right = window
    if left < 0 and right <= 0:
        return "full" if right < 0 else "causal"
    return "window"


def variant_of(
    head_dim: int, window: Window, *, is_packed: bool = False, has_softcap: bool = False
) -> str:
    """The variant of kernels that serves such calls, as in a kernel's name."""
    return _schedule.kernel_name_words(head_dim, window, is_packed, has_softcap)[1]


def supporting_schedules(mask: str, *, is_packed: bool) -> list[str]:
    """Schedules that are legal under the mask for some lengths, or packed for any."""
    return list(_LEGAL[mask, is_packed])


@dataclass(frozen=True)
class Packed:
    """Sequences behind each other in one tensor, as far as the host knows them."""

    sequences: int
    max_seqlen_q: int
    max_seqlen_k: int


@dataclass(frozen=True)
class Problem:
    """A checked call: what a kernel and a schedule are chosen by."""

    dtype: torch.dtype
    head_dim: int
    head_dim_v: int
    window: Window  # a bound that no key exceeds is -1
    softcap: float
    sizes: tuple[int, int, int, int, int]  # batch, seqlen_q, seqlen_k, heads, heads of k
    is_packed: bool  # batch counts the sequences, and the lengths are the greatest ones
    # "auto"; or a name of schedules(), "unordered" for deterministic=False, perhaps with "/" and
    # the number of parts of a query group
    schedule: str

    @property
    def mask(self) -> str:
        return mask_name(self.window)

    @property
    def group_size(self) -> int:
        """Query heads of each head of k and v."""
        return self.sizes[3] // self.sizes[4]

    @property
    def kernel_key(self) -> tuple[str, int, str]:
        """(dtype, compiled head dim, variant), as in a kernel's name."""
        words = _schedule.kernel_name_words(
            max(self.head_dim, self.head_dim_v), self.window, **self.features
        )
        return DTYPE_NAMES[self.dtype], *words

    @property
    def features(self) -> dict[str, bool]:
        """Keywords of `_schedule`'s functions."""
        return {"packed": self.is_packed, "softcap": self.softcap != 0.0}

    @property
    def config(self) -> tuple[Any, ...]:
        """The first arguments of `_schedule.fwd_config` and `bwd_config`."""
        return DTYPE_NAMES[self.dtype], max(self.head_dim, self.head_dim_v), self.window

    @property
    def shape(self) -> tuple[Any, ...]:
        """The first arguments of `_schedule.make_grid` and `_schedule.choose`."""
        return *self.config, *self.sizes

    def grid(self, schedule: str) -> _schedule.TileGrid:
        """The problem in tiles, under a schedule's name."""
        return _schedule.make_grid(*self.shape, schedule, **self.features)

    def choose(self, num_ctas: int | None = None) -> tuple[str, bool]:
        """What "auto" is, a name or "name/parts", and whether another batch size could make it
        another one."""
        return _schedule.choose(*self.shape, num_ctas=num_ctas, **self.features)

    def is_legal(self, schedule: str) -> bool:
        """Whether the call can have the schedule, on enough SMs."""
        if not _schedule.supports(schedule, self.window, self.is_packed):
            return False
        return self.is_packed or _schedule.is_legal(self.grid(schedule))

    def gang_size(self, schedule: str) -> int:
        """CTAs that a legal schedule needs at once."""
        return 1 if self.is_packed else _schedule.gang_size(self.grid(schedule))


def check_dtypes(dtypes: dict[str, torch.dtype]) -> None:
    """Refuses all but bfloat16 and float16, and mixtures."""
    first_name, first = next(iter(dtypes.items()))
    for name, dtype in dtypes.items():
        if dtype not in DTYPE_NAMES:
            raise ValueError(
                f"{name} has dtype {dtype}; torch.bfloat16 and torch.float16 are supported "
                "(float32 is cast under torch.autocast only)"
            )
        if dtype != first:
            raise ValueError(f"{name} has dtype {dtype}, but {first_name} has dtype {first}")


def check_shapes(q_shape: Shape, k_shape: Shape, v_shape: Shape, *, is_packed: bool) -> None:
    """Refuses ranks, head counts and head dims that no kernel takes."""
    layout = "(total, heads, head_dim)" if is_packed else "(batch, seqlen, heads, head_dim)"
    rank = 3 if is_packed else 4
    for name, shape in (("q", q_shape), ("k", k_shape), ("v", v_shape)):
        if len(shape) != rank:
            other = "flash_attn_func" if is_packed else "flash_attn_varlen_func"
            hint = f"; {other} takes such tensors" if len(shape) == 7 - rank else ""
            raise ValueError(
                f"{name} has {len(shape)} dimensions, shape {tuple(shape)}; "
                f"expected {rank}: {layout}{hint}"
            )
    for name, shape in (("k", k_shape), ("v", v_shape)):
        if not is_packed and shape[0] != q_shape[0]:
            raise ValueError(f"{name} has batch {shape[0]}, but q has batch {q_shape[0]}")
    num_heads, head_dim = q_shape[-2:]
    rows_k, num_heads_k, head_dim_k = k_shape[-3:]
    if v_shape[-3] != rows_k or v_shape[-2] != num_heads_k:
        raise ValueError(
            f"v has ({'total' if is_packed else 'seqlen'}, heads) {(v_shape[-3], v_shape[-2])}, "
            f"but k has {(rows_k, num_heads_k)}; they must be equal"
        )
    if head_dim_k != head_dim:
        raise ValueError(f"k has head_dim {head_dim_k}, but q has head_dim {head_dim}")
    if num_heads < 1 or num_heads_k < 1:
        raise ValueError(f"q has {num_heads} heads and k has {num_heads_k}; at least 1 is needed")
    if num_heads % num_heads_k != 0:
        raise ValueError(
            f"k has {num_heads_k} heads, which do not divide the {num_heads} heads of q; "
            "grouped queries need a whole number of query heads per head of k and v"
        )
    for name, size in (("q", head_dim), ("v", v_shape[-1])):
        if size < 1 or size > MAX_HEAD_DIM or size % HEAD_DIM_STEP != 0:
            raise ValueError(
                f"{name} has head_dim {size}; supported are the multiples of {HEAD_DIM_STEP} up to "
                f"the maximum {MAX_HEAD_DIM}" + _head_dim_way_out(size)
            )


def _head_dim_way_out(size: int) -> str:
    if not 1 <= size < MAX_HEAD_DIM:
        return ""
    return (
        f": pad with zeros to {-(-size // HEAD_DIM_STEP) * HEAD_DIM_STEP} "
        "(torch.nn.functional.pad), and pass softmax_scale for the unpadded size"
    )


def check_sizes(q_shape: Shape, k_shape: Shape, packed: Packed | None) -> None:
    """Refuses counts that the kernels could not hold in 32 bits."""
    for name, shape in (("q", q_shape), ("k", k_shape)):
        if min(shape) < 0 or max(shape) >= _MAX_ROWS:
            raise ValueError(
                f"{name} has shape {tuple(shape)}; each dimension must be below {_MAX_ROWS}"
            )
        if packed is None:
            tiles, what = max(shape[0], 1) * (shape[1] // SMALLEST_TILE + 1), "batch * heads * "
            what += f"(seqlen / {SMALLEST_TILE} + 1)"
        else:
            tiles = shape[0] // SMALLEST_TILE + packed.sequences
            what = f"heads * (rows / {SMALLEST_TILE} + sequences)"
        if tiles * shape[-2] >= MAX_TILES:
            raise ValueError(
                f"{name} has shape {tuple(shape)}"
                + ("" if packed is None else f" and {packed.sequences} sequences")
                + f"; {what} must be below {MAX_TILES}: split the batch"
            )


def check_packed(packed: Packed) -> None:
    """Refuses lengths and counts that are none."""
    if not 0 <= packed.sequences < _MAX_ROWS // 2:
        raise ValueError(
            f"cu_seqlens_q has {packed.sequences} sequences; at least 0 and below {_MAX_ROWS // 2} "
            "are possible"
        )
    for name in ("max_seqlen_q", "max_seqlen_k"):
        if not 0 <= getattr(packed, name) < _MAX_ROWS:
            raise ValueError(
                f"{name}={getattr(packed, name)} must be at least 0 and below {_MAX_ROWS}"
            )


def check_scale(softmax_scale: float | None, softcap: float) -> None:
    """Refuses factors with which no finite or no accurate score comes out: the kernels hold them
    as float32, and the backward divides the rounding error of lse by softcap."""
    if softmax_scale is not None and not 1e-30 < softmax_scale < 1e30:
        raise ValueError(
            f"softmax_scale={softmax_scale!r} must be between 1e-30 and 1e30; None means "
            "1 / sqrt(head_dim)"
        )
    if softcap != 0.0 and not 1e-2 <= softcap <= 1e30:
        raise ValueError(
            f"softcap={softcap!r} must be 0.0, which is none, or between 1e-2 and 1e30"
        )


def resolve_window(causal: bool, window_size: Sequence[int | None]) -> Window:
    """(left, right) of both arguments; -1 is no limit. Lengths are not looked at."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ValueError(
            f"window_size={window_size!r} must be a pair (left, right); -1 or None is no limit"
        )
    left, right = (-1 if bound is None else bound for bound in window_size)
    if isinstance(left, float) or isinstance(right, float):
        raise ValueError(f"window_size={window_size!r}: a bound is an int, or None for no limit")
    if left < -1 or right < -1:
        raise ValueError(f"window_size={window_size!r}: a bound is at least 0, or -1 for no limit")
    left, right = (-1 if bound >= _MAX_ROWS else bound for bound in (left, right))
    return left, 0 if causal else right


def narrow_window(window: Window, seqlen_q: int, seqlen_k: int) -> Window:
    """The window with -1 for a bound that no key exceeds; (-1, 0) stays causal."""
    left, right = window
    return (
        -1 if left >= seqlen_k - 1 else left,
        -1 if right > 0 and right >= seqlen_q - 1 else right,
    )


def _is_count(text: str) -> bool:
    """Whether it is a number of at least 1, as the operators read one."""
    return text.isdecimal() and text.isascii() and 0 < int(text) < 1_000_000


def resolve_schedule_name(deterministic: bool, schedule: str, window: Window) -> str:
    """The schedule that the operator is given: "auto", a known name, or a name with "/" and the
    number of parts of a query group."""
    legal = _LEGAL[mask_name(window), False]
    name, slash, parts = schedule.partition("/")
    if schedule != "auto" and (name not in SCHEDULES or (slash and not _is_count(parts))):
        raise ValueError(
            f"schedule={schedule!r} is not known; choose 'auto' or one of {legal}, which may be "
            "followed by the number of parts that query groups are cut into: 'band/2'"
        )
    if not deterministic:
        if name not in ("auto", "unordered"):
            raise ValueError(
                f"schedule={schedule!r} with deterministic=False: an ordered schedule is "
                "deterministic; leave schedule='auto' for the unordered kernel"
            )
        return "unordered" if name == "auto" else schedule
    if name == "unordered":
        ordered = [name for name in legal if name != "unordered"]
        raise ValueError(
            f"schedule={schedule!r} with deterministic=True: the unordered kernel is not "
            f"deterministic; pass deterministic=False, or 'auto' or one of {ordered}"
        )
    return schedule


def legal_schedules(problem: Problem, num_sms: int | None = None) -> list[str]:
    """Ordered schedules that the problem can have, on `num_sms` SMs (None: as many as it takes)."""
    return [
        name
        for name in _LEGAL[problem.mask, problem.is_packed]
        if name != "unordered"
        and problem.is_legal(name)
        and (num_sms is None or problem.gang_size(name) <= num_sms)
    ]


def check_legal(problem: Problem) -> None:
    """Refuses a named schedule that mask, layout or lengths do not allow."""
    name = problem.schedule
    if name == "auto":
        return
    order, at, section = name.partition("@")
    plain, slash, parts = order.partition("/")
    if (
        plain not in SCHEDULES
        or (slash and not _is_count(parts))
        or (at and not _is_count(section))
    ):
        raise ValueError(
            f"schedule={name!r} is not known; choose 'auto' or one of {legal_schedules(problem)}"
        )
    if slash and problem.group_size % int(parts) != 0:
        divisors = [n for n in range(1, problem.group_size + 1) if problem.group_size % n == 0]
        raise ValueError(
            f"schedule={name!r} cuts the {problem.group_size} query heads of each head of k and v "
            f"into {parts} parts; the number of parts must divide them: one of {divisors}"
        )
    if plain not in _LEGAL[problem.mask, problem.is_packed]:
        packed = " and packed sequences" if problem.is_packed else ""
        raise ValueError(
            f"schedule={name!r} is not legal for a {problem.mask} mask{packed}: it is for "
            f"{_schedule.legal_for(plain)}; choose 'auto' or one of {legal_schedules(problem)}"
        )
    if not problem.is_legal(name):
        grid = problem.grid(name)
        raise ValueError(
            f"schedule={name!r} is legal for {_schedule.legal_for(plain)}; "
            f"here seqlen_q is {grid.seqlen_q}, {grid.num_m_blocks()} Q tiles, and seqlen_k is "
            f"{grid.seqlen_k}, {grid.num_n_blocks()} KV tiles; choose 'auto' or one of "
            f"{legal_schedules(problem)}"
        )


def check_residency(problem: Problem, num_sms: int | None) -> None:
    """Refuses a named schedule that needs more SMs at once than there are (None: no limit)."""
    if problem.schedule == "auto" or num_sms is None:
        return
    gang = problem.gang_size(problem.schedule)
    if gang > num_sms:
        raise ValueError(
            f"schedule={problem.schedule!r} needs {gang} SMs at once for this shape, and {num_sms} "
            "are free (those of the GPU minus sm_margin); choose 'auto' or one of "
            f"{legal_schedules(problem, num_sms)}"
        )


@dataclass(frozen=True)
class Options:
    """A call's arguments that are neither tensors nor about the layout."""

    window: Window  # of resolve_window
    softcap: float
    schedule: str  # "auto" or a name, perhaps with "/" and the number of parts of a query group
    softmax_scale: float | None = None  # None: default_scale


def options(
    causal: bool,
    window_size: Sequence[int | None],
    softcap: float,
    deterministic: bool,
    schedule: str,
    softmax_scale: float | None = None,
) -> Options:
    """The public functions' arguments as `Options`."""
    window = resolve_window(causal, window_size)
    name = resolve_schedule_name(deterministic, schedule, window)
    return Options(window, softcap, name, softmax_scale)


def check_problem(
    shapes: tuple[Shape, Shape, Shape],
    dtypes: dict[str, torch.dtype],
    packed: Packed | None,
    given: Options,
) -> Problem:
    """All checks that need no tensor and no device.

    Args:
        shapes: of q, k and v; packed ones are (total, heads, head_dim).
        packed: None for (batch, seqlen, heads, head_dim) tensors.

    Raises:
        ValueError: what is wrong with the first argument that is.
    """
    q_shape, k_shape, v_shape = shapes
    check_dtypes(dtypes)
    check_shapes(*shapes, is_packed=packed is not None)
    if packed is not None:
        check_packed(packed)
    check_sizes(q_shape, k_shape, packed)
    check_scale(given.softmax_scale, given.softcap)
    if packed is None:
        lengths = (q_shape[0], q_shape[1], k_shape[1])
    else:
        longest_q, longest_k = (
            min(length, shape[0])
            for length, shape in ((packed.max_seqlen_q, q_shape), (packed.max_seqlen_k, k_shape))
        )
        lengths = (packed.sequences, longest_q, longest_k)
    problem = Problem(
        dtype=next(iter(dtypes.values())),
        head_dim=q_shape[-1],
        head_dim_v=v_shape[-1],
        window=narrow_window(given.window, *lengths[1:]),
        softcap=float(given.softcap),
        sizes=(*lengths, q_shape[-2], k_shape[-2]),
        is_packed=packed is not None,
        schedule=given.schedule,
    )
    check_legal(problem)
    return problem


def default_scale(head_dim: int) -> float:
    """softmax_scale=None."""
    return 1.0 / math.sqrt(head_dim)
