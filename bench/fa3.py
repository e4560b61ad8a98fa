"""Finds FlashAttention-3's operators, torch.ops.flash_attn_3.fwd and bwd.

Sources, in this order: the library file named to use_library, the module flash_attn_interface, and
the library inside an installed xformers (0.0.34 holds one; xformers itself is not imported, since
it insists on its own torch version). That library is built on torch's stable ABI and linked with
CUDA 12's runtime, which a torch for CUDA 13 does not bring along.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import torch

CUDA_RUNTIME = "libcudart.so.12"
_named_library: Path | None = None


class UnavailableError(Exception):
    """Why the operators cannot be had."""


def use_library(path: Path | None) -> None:
    """Names the library file to load instead of searching for one; None searches again."""
    global _named_library
    _named_library = path
    _registration.cache_clear()


def why_unavailable() -> str | None:
    """Why the operators cannot be had on this machine, or None if they are registered."""
    return _registration()


@functools.cache
def _registration() -> str | None:
    """Registers the operators if they are not yet; the reason if that fails."""
    try:
        _register()
        if not _is_registered():
            return "what was loaded registers no torch.ops.flash_attn_3.fwd and bwd (too old?)"
    except UnavailableError as error:
        return str(error)
    return None


def _is_registered() -> bool:
    return hasattr(torch.ops.flash_attn_3, "fwd") and hasattr(torch.ops.flash_attn_3, "bwd")


def _register() -> None:
    """Loads the first source that there is. Raises UnavailableError."""
    if _named_library is not None:
        if not _named_library.is_file():
            raise UnavailableError(f"--fa3-library {_named_library}: no such file")
        _load(_named_library)
        return
    if _is_registered():
        return
    try:
        importlib.import_module("flash_attn_interface")
    except ModuleNotFoundError as error:
        if error.name != "flash_attn_interface":
            raise UnavailableError(f"flash_attn_interface does not import: {error}") from error
    except (ImportError, OSError) as error:
        raise UnavailableError(f"flash_attn_interface does not import: {error}") from error
    else:
        return
    _load(_xformers_library())


def _xformers_library() -> Path:
    """The operator library in the installed xformers. Raises UnavailableError."""
    try:
        xformers = importlib.metadata.distribution("xformers")
    except importlib.metadata.PackageNotFoundError as error:
        raise UnavailableError(
            "neither flash_attn_interface nor xformers is installed; install xformers 0.0.34 "
            "(--no-deps) and nvidia-cuda-runtime-cu12, or name the library with --fa3-library"
        ) from error
    path = Path(str(xformers.locate_file("xformers/flash_attn_3/_C.so")))
    if not path.is_file():
        raise UnavailableError(f"xformers {xformers.version} has no {path}; 0.0.34 has")
    return path


def _load(library: Path) -> None:
    """Loads an operator library, CUDA 12's runtime first. Raises UnavailableError."""
    _load_cuda_runtime(library.parent)
    try:
        torch.ops.load_library(str(library.resolve()))
    except (OSError, RuntimeError) as error:
        # torch wraps the loader's error, which names the missing library.
        raise UnavailableError(f"{library} does not load: {error.__cause__ or error}") from error


def _load_cuda_runtime(beside: Path) -> None:
    """Loads CUDA 12's runtime from the loader's path, the library's folder or its own package; a
    library loaded later finds it by its soname. Silent if there is none: the library's own error
    then names it, and a library linked otherwise needs none."""
    for candidate in _cuda_runtimes(beside):
        try:
            ctypes.CDLL(candidate)
        except OSError:
            continue
        return


def _cuda_runtimes(beside: Path) -> Iterator[str]:
    yield CUDA_RUNTIME
    yield str((beside / CUDA_RUNTIME).resolve())
    try:
        package = importlib.metadata.distribution("nvidia-cuda-runtime-cu12")
    except importlib.metadata.PackageNotFoundError:
        return
    yield str(package.locate_file(f"nvidia/cuda_runtime/lib/{CUDA_RUNTIME}"))
