"""Dirty memory and a busy GPU: what a kernel must not notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Bytes of which NaN consists in bf16, fp16 and fp32 (and -1 in int32); and 0x7f7f7f7f.
NAN_BYTE, HUGE_BYTE = 0xFF, 0x7F
_SMALL, _NUM_SMALL = 512 << 10, 64  # torch keeps blocks up to 1 MiB in a pool of their own


class _RawBytes:
    """Device memory that no tensor owns, for torch.as_tensor."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


def poison_freed_memory(byte: int, large_bytes: int = 1 << 30) -> None:
    """Fills what torch's caching allocator will hand out next with the byte.

    Gradients, workspaces and counters that a later call allocates then start as garbage. Enough
    free blocks of both kinds are made first; then every free block is filled, also the remainders
    beside live tensors.
    """
    blocks = [
        torch.empty(large_bytes, dtype=torch.uint8, device="cuda"),
        *(torch.empty(_SMALL, dtype=torch.uint8, device="cuda") for _ in range(_NUM_SMALL)),
    ]
    torch.cuda.synchronize()
    del blocks
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                raw = _RawBytes(address, block["size"])
                torch.as_tensor(raw, device="cuda").fill_(byte)
            address += block["size"]
    torch.cuda.synchronize()
    for size in (1 << 10, 4 << 20):
        fresh = torch.empty(size, dtype=torch.uint8, device="cuda")
        if not bool((fresh == byte).all()):
            raise RuntimeError(f"a fresh block of {size} bytes is not poisoned")


@contextmanager
def busy_second_stream() -> Iterator[None]:
    """Keeps a second stream busy with products and copies while the body runs.

    The body must call `keep_busy` now and then; leaving it waits for the stream.
    """
    load = _Load()
    _Load.current = load
    try:
        yield
    finally:
        _Load.current = None
        load.stream.synchronize()


class _Load:
    current: _Load | None = None

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
        self.b = torch.empty(64 << 20, device="cuda", dtype=torch.uint8)
        torch.cuda.synchronize()

    def push(self) -> None:
        with torch.cuda.stream(self.stream):
            for _ in range(4):
                torch.mm(self.a, self.a)
            self.b.copy_(self.b.flip(0))


def keep_busy() -> None:
    """Queues a few hundred microseconds of work on the second stream."""
    if _Load.current is None:
        raise RuntimeError("keep_busy outside busy_second_stream")
    _Load.current.push()
