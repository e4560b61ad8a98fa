"""Writes one CUDA source per kernel family, and the manifest that the dispatch table is built from.

Enumerates keys only (pass, head dim, dtype, variant); tile sizes live in csrc/config. Output is
sorted and byte-stable, and files that would not change are not rewritten, so an incremental build
stays warm. Run by setup.py, or by hand: python csrc/instantiate.py [--out DIR]
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

# As in csrc/config/kernel_key.hpp, which this script must not need a compiler to read;
# tests/test_build.py compares them.
HEAD_DIMS = (64, 96, 128, 192, 256)
DTYPES = {"bf16": "kBf16", "fp16": "kFp16"}
VARIANTS = {
    "full": "kFull",
    "causal": "kCausal",
    "packed_full": "kPackedFull",
    "general": "kGeneral",
}
PACKED_FULL_HEAD_DIMS = (128,)

# Going over the budget is a decision: change it here, with the build time in the commit message.
MAX_FORWARD_KERNELS = 32
MAX_BACKWARD_KERNELS = 32

FORWARD_SOURCE = """\
// Written by csrc/instantiate.py.
#include "fwd/launch.cuh"

namespace dash::fwd {{
namespace {{
constexpr FwdConfig kConfig =
    fwd_config({{.dtype = DType::{dtype}, .head_dim = {head_dim}, .variant = Variant::{variant}}});
}}  // namespace

void {name}(FwdParams const& params, cudaStream_t stream) {{
  launch<kConfig>(params, stream);
}}
std::vector<KernelAttributes> {name}_attributes() {{
  return attributes<kConfig>();
}}

}}  // namespace dash::fwd
"""

BACKWARD_SOURCE = """\
// Written by csrc/instantiate.py.
#include "bwd/launch.cuh"
#include "config/kernel_policies.hpp"

namespace dash::bwd {{
namespace {{
constexpr BwdConfig kConfig =
    bwd_config({{.dtype = DType::{dtype}, .head_dim = {head_dim}, .variant = Variant::{variant}}});
}}  // namespace

void {name}(BwdParams const& params, cudaStream_t stream) {{
  launch<kConfig, schedule::BuiltInOf<kConfig.key.variant>>(params, stream);
}}
std::vector<KernelAttributes> {name}_attributes() {{
  return attributes<kConfig, schedule::BuiltInOf<kConfig.key.variant>>();
}}

}}  // namespace dash::bwd
"""


@dataclass(frozen=True)
class Kernel:
    """One kernel family: what a user can ask for, in one pass."""

    direction: str  # "fwd" or "bwd"
    head_dim: int
    dtype: str
    variant: str

    @property
    def exists(self) -> bool:
        """Whether some call needs it."""
        return self.variant != "packed_full" or self.head_dim in PACKED_FULL_HEAD_DIMS

    @property
    def words(self) -> tuple[str, ...]:
        return (self.direction, f"hdim{self.head_dim}", self.dtype, self.variant)

    @property
    def name(self) -> str:
        return "_".join(self.words)

    def source(self) -> str:
        """The text of its .cu file."""
        template = FORWARD_SOURCE if self.direction == "fwd" else BACKWARD_SOURCE
        return template.format(
            name=self.name,
            dtype=DTYPES[self.dtype],
            head_dim=self.head_dim,
            variant=VARIANTS[self.variant],
        )

    def manifest_line(self) -> str:
        """Its line of manifest.inc: key and function name."""
        key = f"{DTYPES[self.dtype]}, {self.head_dim}, {VARIANTS[self.variant]}"
        return f"DASH_{self.direction.upper()}_KERNEL({self.name}, {key})\n"


def all_kernels() -> list[Kernel]:
    """Every supported kernel, sorted by name."""
    keys = itertools.product(("bwd", "fwd"), HEAD_DIMS, DTYPES, VARIANTS)
    kernels = sorted((Kernel(*key) for key in keys), key=lambda kernel: kernel.name)
    kernels = [kernel for kernel in kernels if kernel.exists]
    backward = sum(kernel.direction == "bwd" for kernel in kernels)
    if backward > MAX_BACKWARD_KERNELS or len(kernels) - backward > MAX_FORWARD_KERNELS:
        raise ValueError(f"{len(kernels)} kernels exceed the budget written in {__file__}")
    return kernels


def selected_kernels(pattern: str | None = None) -> list[Kernel]:
    """The kernels that a filter keeps; all of them without one.

    The filter (default: environment variable DASH_KERNELS) is a comma-separated list of words with
    shell wildcards. A kernel is kept if each of them matches one of its words: "hdim128,bf16,*"
    keeps both passes and all variants of head dim 128 in bf16. Several lists, separated by
    semicolons, keep what any of them keeps. Raises ValueError if none is left.
    """
    pattern = os.environ.get("DASH_KERNELS", "") if pattern is None else pattern
    lists = [
        [word.strip() for word in part.split(",") if word.strip()] for part in pattern.split(";")
    ]

    def is_kept(kernel: Kernel, wanted: list[str]) -> bool:
        return all(any(fnmatch.fnmatchcase(word, want) for word in kernel.words) for want in wanted)

    lists = [wanted for wanted in lists if wanted] or [[]]
    kept = [kernel for kernel in all_kernels() if any(is_kept(kernel, wanted) for wanted in lists)]
    if not kept:
        names = ", ".join(kernel.name for kernel in all_kernels())
        raise ValueError(f"DASH_KERNELS={pattern!r} matches no kernel; there are: {names}")
    return kept


def write_if_changed(path: Path, text: str) -> None:
    """Writes the file unless it already holds the text."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def generate(out: Path, pattern: str | None = None) -> list[Path]:
    """Writes the selected sources and manifest.inc to `out`; returns the sources' paths, sorted.

    Sources that an earlier, wider filter wrote stay: going back to it then rebuilds nothing.
    """
    out.mkdir(parents=True, exist_ok=True)
    kernels = selected_kernels(pattern)
    sources = [out / f"{kernel.name}.cu" for kernel in kernels]
    for kernel, source in zip(kernels, sources):
        write_if_changed(source, kernel.source())
    manifest = "".join(kernel.manifest_line() for kernel in kernels)
    write_if_changed(out / "manifest.inc", manifest)
    return sources


def main() -> None:
    """Command line: writes the sources and prints their paths."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(__file__).resolve().parent.parent / "build" / "instantiations"
    parser.add_argument("--out", type=Path, default=default)
    for source in generate(parser.parse_args().out):
        print(source)


if __name__ == "__main__":
    main()
