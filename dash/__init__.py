"""Attention for Hopper GPUs, forward and backward, whose gradients are the same bits every time."""

from __future__ import annotations

from ._support import (
    ScheduleInfo,
    is_supported,
    resolve_schedule,
    schedules,
    supported_head_dims,
)
from .interface import flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func
from .introspection import build_info, compiled_kernels

__version__ = "0.1.0"

__all__ = [
    "ScheduleInfo",
    "__version__",
    "build_info",
    "compiled_kernels",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "is_supported",
    "resolve_schedule",
    "schedules",
    "supported_head_dims",
]


def _warn_of_plotly_dash() -> None:
    """Plotly's distribution "dash" installs a package of the same name over this one."""
    import importlib.metadata
    import warnings

    try:
        importlib.metadata.distribution("dash")
    except importlib.metadata.PackageNotFoundError:
        return
    warnings.warn(
        "the distribution 'dash' (Plotly) is installed beside 'dash-attn'; both provide the import "
        "package 'dash'. Uninstall one, or build dash-attn with DASH_IMPORT_NAME=dash_attn.",
        stacklevel=3,
    )


if __name__ == "dash":
    _warn_of_plotly_dash()
