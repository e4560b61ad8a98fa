"""The build's own logic: instantiations, the ptxas record and its gate, lint, statistics."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

from bench import kernel_stats

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "csrc"))

import instantiate  # noqa: E402
import lint  # noqa: E402
import nvcc  # noqa: E402

MANGLED = "_ZN4dash3bwd11main_kernelINS0_6TraitsILi128EEEEEvNS_9BwdParamsE"
LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{name}' for 'sm_90a'
ptxas info    : Function properties for {name}
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers
ptxas info    : Compile time = 1.000 ms
"""


def log_of(name: str = MANGLED, stack: int = 0, stores: int = 0, loads: int = 0) -> str:
    return LOG.format(name=name, stack=stack, stores=stores, loads=loads)


def test_instantiations_are_the_supported_keys(tmp_path: Path) -> None:
    from dash import _problem, _schedule

    calls = itertools.product(
        range(8, _problem.MAX_HEAD_DIM + 1, 8), _problem.MASKS.values(), *[(False, True)] * 2
    )
    words = {_schedule.kernel_name_words(*call) for call in calls}
    keys = itertools.product(("bwd", "fwd"), words, ("bf16", "fp16"))
    expected = sorted(f"{p}_hdim{d}_{dtype}_{variant}" for p, (d, variant), dtype in keys)
    assert len(expected) == 64
    sources = instantiate.generate(tmp_path, "")
    assert [source.stem for source in sources] == expected
    manifest = (tmp_path / "manifest.inc").read_text()
    assert re.findall(r"KERNEL\((\w+),", manifest) == expected


def test_unchanged_sources_are_not_rewritten(tmp_path: Path) -> None:
    first = instantiate.generate(tmp_path, "")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert instantiate.generate(tmp_path, "") == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_filter_keeps_kernels_that_match_every_word() -> None:
    def names(pattern: str) -> list[str]:
        return [kernel.name for kernel in instantiate.selected_kernels(pattern)]

    assert names("hdim128,bf16,*") == [
        f"{direction}_hdim128_bf16_{variant}"
        for direction in ("bwd", "fwd")
        for variant in ("causal", "full", "general", "packed_full")
    ]
    assert names("hdim192,bf16,general") == ["bwd_hdim192_bf16_general", "fwd_hdim192_bf16_general"]
    assert names("fwd,fp16,full,hdim64") == ["fwd_hdim64_fp16_full"], "packed_full is another word"
    with pytest.raises(ValueError, match=r"hdim80.*matches no kernel.*bwd_hdim128_bf16_causal"):
        names("hdim80")


def test_lists_of_a_filter_add_up() -> None:
    def count(pattern: str) -> int:
        return len(instantiate.selected_kernels(pattern))

    assert count("hdim64,bf16;hdim256,fp16") == count("hdim64,bf16") + count("hdim256,fp16")
    assert count("hdim64,bf16;hdim64") == count("hdim64")
    assert count("hdim64;") == count("hdim64") < count("") == count(";")


def test_ptxas_log_is_read_per_kernel() -> None:
    cold = MANGLED.replace("11main_kernel", "17preprocess_kernel")
    kernels = nvcc.parse_ptxas(log_of(stack=64, stores=8, loads=4) + log_of(cold, stack=16))
    assert [kernel["kernel"] for kernel in kernels] == [
        "dash::bwd::main_kernel",
        "dash::bwd::preprocess_kernel",
    ]
    assert kernels[0]["registers"] == 168
    assert (kernels[0]["spill_store_bytes"], kernels[0]["spill_load_bytes"]) == (8, 4)
    assert len(nvcc.faults("bwd", kernels[0])) == 3
    assert nvcc.faults("bwd", kernels[1]) == [], "a cold kernel may use the stack"


def test_serialised_wgmma_is_a_fault_of_a_hot_kernel() -> None:
    warning = (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
        f"serialized due to insufficient register resources in function '{MANGLED}'\n"
    )
    (kernel,) = nvcc.parse_ptxas(warning + log_of())
    assert nvcc.faults("bwd", kernel) == ["serialised WGMMAs"]
    (kernel,) = nvcc.parse_ptxas(log_of())
    assert nvcc.faults("bwd", kernel) == []


def test_statistics_name_stages_and_differences() -> None:
    assert kernel_stats.stage_of("fwd_hdim64_bf16_full", "dash::fwd::fwd_kernel") == "fwd"
    assert kernel_stats.stage_of("bwd_x", "dash::bwd::preprocess_kernel") == "bwd_preprocess"
    assert kernel_stats.stage_of("bwd_x", "dash::bwd::main_kernel") == "bwd_main"
    assert kernel_stats.stage_of("bwd_x", "dash::bwd::add_dkv_parts_kernel") == "bwd_add_dkv_parts"
    for kernel in ("order_sequences", "unowned_rows"):
        for direction in ("fwd", "bwd"):
            stage = kernel_stats.stage_of(f"{direction}_hdim64_bf16_general", f"{kernel}_kernel")
            assert stage == f"{direction}_{kernel}"

    def stats(registers: int, cuda: str = "13.0") -> dict[str, object]:
        stage = {"stage": "fwd", "registers": registers}
        return {"cuda": cuda, "kernels": [{"name": "fwd_x", "stages": [stage]}]}

    assert kernel_stats.differences(stats(168), stats(168)) == []
    assert len(kernel_stats.differences(stats(168), stats(160))) == 1
    assert kernel_stats.differences(stats(168, "13.1"), stats(160)) == []


def test_lint_measures_functions_and_finds_dead_code(tmp_path: Path) -> None:
    body = "".join(f"  x += {i};\n" for i in range(90))
    text = "// A file.\n#pragma once\nnamespace a {\nstruct B {\n  int c = 0;\n};\n"
    text += f"void f(int x) {{\n{body}}}\n// x = y + 1;\n// Prose that ends here;\n}}\n"
    assert list(lint.cpp_functions(text)) == [(7, 92)]
    found = [(line, message) for _, line, message in lint.check_comments(Path("a.hpp"), text)]
    assert found == [(99, "commented-out code")]
