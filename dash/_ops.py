"""The operators ``torch.ops.dash_attn.*``: schemas, fake kernels, autograd and the CPU kernels.

The CUDA kernels come from ``_C.abi3.so``, which registers them against the schemas defined here.
Where that library is absent or cannot be loaded, importing still works and a CUDA tensor gets an
error that says why.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
from typing import Any

import torch
from torch import Tensor

from . import _operands, reference

NAMESPACE = "dash_attn"

# After the tensors. cu_seqlens given: q, k, v are packed, (total, heads, head_dim).
_OPTIONS = (
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_q, Tensor? seqused_k, "
    "int max_seqlen_q, int max_seqlen_k, float softmax_scale, int window_size_left, "
    "int window_size_right, float softcap, str schedule, int sm_margin"
)

_library = torch.library.Library(NAMESPACE, "DEF")
_library.define(
    f"fwd(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "semaphore_fold(Tensor(a!) chains, Tensor(b!) semaphore, int contributors, int jitter) -> ()"
)
_library.define("occupy_sms(Tensor(a!) flags, int num_ctas, int microseconds) -> ()")


def _load_cuda_library() -> tuple[ctypes.CDLL | None, str]:
    """Loads ``_C`` if it was built; returns it, or None and the reason why there is none."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = sorted(glob.glob(os.path.join(here, "_C*.so")))
    if not paths:
        return None, "this installation was built without CUDA kernels"
    try:
        torch.ops.load_library(paths[0])
        return ctypes.CDLL(paths[0]), ""
    except OSError as error:
        return None, f"the CUDA kernels could not be loaded: {error}"


_cuda_library, cuda_library_error = _load_cuda_library()


def manifest() -> dict[str, Any]:
    """What the CUDA library says of its build: version, cuda, cutlass and kernels; {} without."""
    if _cuda_library is None:
        return {}
    function = _cuda_library.dash_build_manifest
    function.restype = ctypes.c_char_p
    return json.loads(function().decode())


def kernel_attributes(name: str) -> list[dict[str, Any]]:
    """Registers, shared and local bytes of each stage of a compiled kernel. Needs a GPU.

    Raises:
        RuntimeError: there is no such kernel, or no GPU to ask.
    """
    if _cuda_library is None:
        raise RuntimeError(f"kernel_attributes({name!r}): {cuda_library_error}")
    function = _cuda_library.dash_kernel_attributes
    function.restype = ctypes.c_char_p
    function.argtypes = [ctypes.c_char_p]
    answer = json.loads(function(name.encode()).decode())
    if isinstance(answer, dict):
        raise RuntimeError(f"kernel_attributes({name!r}): {answer['error']}")
    return answer


def _refuse_cuda(*_args: Any) -> Any:
    raise RuntimeError(
        f"dash: a CUDA tensor was given, but {cuda_library_error}. Install from source with nvcc "
        "(CUDA 12.6 or later) on PATH or in CUDA_HOME, or move the tensors to the CPU."
    )


if _cuda_library is None:
    for _name in ("fwd", "bwd", "semaphore_fold", "occupy_sms"):
        _library.impl(_name, _refuse_cuda, "CUDA")

_library.impl("fwd", reference.forward, "CPU")
_library.impl("bwd", reference.backward, "CPU")


@torch.library.register_fake(f"{NAMESPACE}::fwd", lib=_library)
def _fwd_fake(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    _operands.check_known(q, k, v, options)
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    rows = (*q.shape[:-3], q.shape[-2], q.shape[-3])  # (batch, heads, seqlen_q), (heads, total_q)
    return out, q.new_empty(rows, dtype=torch.float32)


@torch.library.register_fake(f"{NAMESPACE}::bwd", lib=_library)
def _bwd_fake(
    _dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@torch.library.register_fake(f"{NAMESPACE}::semaphore_fold", lib=_library)
def _semaphore_fold_fake(*_args: Any) -> None:
    return None


@torch.library.register_fake(f"{NAMESPACE}::occupy_sms", lib=_library)
def _occupy_sms_fake(*_args: Any) -> None:
    return None


_DOUBLE_BACKWARD = (
    "dash: the backward of attention has no gradient of its own (double backward, "
    "create_graph=True); use torch.nn.functional.scaled_dot_product_attention with the math "
    "backend where second derivatives are needed"
)
_fwd = torch.ops.dash_attn.fwd.default
_bwd = torch.ops.dash_attn.bwd.default
_NUM_INDICES = 4  # cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k: the first of the options


def _without_autograd(operator: Any, *arguments: Any) -> Any:
    """The operator where no gradient of it is wanted: past the kernels that register_autograd
    makes, which are written in Python and would double the host time of the call."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The operator bwd, as the gradient of `attention` calls it: the caller has refused
    create_graph."""
    if torch.compiler.is_compiling():  # compiled autograd
        return torch.ops.dash_attn.bwd(*arguments)
    return _without_autograd(_bwd, *arguments)


def _save_for_backward(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[: 3 + _NUM_INDICES], *output)
    ctx.options = inputs[3 + _NUM_INDICES :]


def _gradients(ctx: Any, operator: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple:
    """Gradients of the operator's arguments, from what _save_for_backward saved."""
    q, k, v, *indices, out, lse = ctx.saved_tensors
    unused = (None,) * (_NUM_INDICES + len(ctx.options))
    if dout is None and dlse is None:
        return (None, None, None, *unused)
    if dout is None:
        dout = torch.zeros_like(out)
    return (*operator(dout, q, k, v, out, lse, dlse, *indices, *ctx.options), *unused)


def _fwd_backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple:
    # Inside the autograd engine, grad mode is on only for create_graph=True.
    if torch.is_grad_enabled():
        raise RuntimeError(_DOUBLE_BACKWARD)
    return _gradients(ctx, backward, dout, dlse)


def _bwd_backward(_ctx: Any, *_grads: Tensor | None) -> tuple:
    raise RuntimeError(_DOUBLE_BACKWARD)


torch.library.register_autograd(
    f"{NAMESPACE}::fwd", _fwd_backward, setup_context=_save_for_backward, lib=_library
)
torch.library.register_autograd(f"{NAMESPACE}::bwd", _bwd_backward, lib=_library)


class _EagerAttention(torch.autograd.Function):
    """The operator fwd with the formula registered for it, in eager mode. What register_autograd
    makes of them does the same in three times the host time."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        output = _without_autograd(_fwd, *arguments)
        _save_for_backward(ctx, arguments, output)
        return output

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple:
        return _fwd_backward(ctx, dout, dlse)


class _Backward(torch.autograd.Function):
    """The operator bwd for torch.func, under which every backward is one with create_graph=True:
    it is the gradient of a gradient that is refused."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _bwd(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(_ctx: Any, *_grads: Tensor | None) -> tuple:
        raise RuntimeError(_DOUBLE_BACKWARD)


class _Attention(torch.autograd.Function):
    """The operator fwd for torch.func, whose transforms do not see an operator's own formula."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        return torch.ops.dash_attn.fwd(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        _save_for_backward(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple:
        return _gradients(ctx, _Backward.apply, dout, dlse)


def attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The operator fwd, differentiable by autograd and by torch.func."""
    if torch.compiler.is_compiling() or torch.overrides.has_torch_function(arguments):
        return torch.ops.dash_attn.fwd(*arguments)
    if torch._C._are_functorch_transforms_active():
        return _Attention.apply(*arguments)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in arguments[:3]):
        return _EagerAttention.apply(*arguments)
    return _without_autograd(_fwd, *arguments)
