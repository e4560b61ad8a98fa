"""The GPU report's parts that need no GPU, and whether the committed report is about this code."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from bench import gpu_report, measure, plot, report, source_hash
from bench.shapes import OTHER_SHAPES, AttentionShape
from bench.timing import Timing

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "reports" / "gpu.json"


def test_hash_is_the_same_with_and_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clean checkout git's list and a walk give the same files."""
    tracked = source_hash.tracked_files(ROOT)
    if tracked is None:
        pytest.skip("not a git checkout")
    tracked_sources = {path for path in tracked if source_hash.is_source(path)}
    walked = {path for path in source_hash.walked_files(ROOT) if source_hash.is_source(path)}
    if walked != tracked_sources:
        pytest.skip(f"uncommitted files: {sorted(map(str, walked ^ tracked_sources))}")
    expected = source_hash.source_hash(ROOT)
    monkeypatch.setattr(source_hash, "tracked_files", lambda root: None)
    assert source_hash.source_hash(ROOT) == expected


def test_every_tracked_file_counts() -> None:
    """A tracked file of a kind that the hash ignores would change unnoticed."""
    tracked = source_hash.tracked_files(ROOT)
    if tracked is None:
        pytest.skip("not a git checkout")
    ignored = [path for path in tracked if not source_hash.is_source(path)]
    assert [path for path in ignored if path.name != "py.typed"] == []


def test_hash_depends_on_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "dash").mkdir()
    first = tmp_path / "csrc" / "a.hpp"
    first.write_text("one")
    before = source_hash.source_hash(tmp_path)
    (tmp_path / "dash" / "_C.abi3.so").write_text("a build product")
    assert source_hash.source_hash(tmp_path) == before
    first.write_text("two")
    changed = source_hash.source_hash(tmp_path)
    first.rename(tmp_path / "csrc" / "b.hpp")
    assert len({before, changed, source_hash.source_hash(tmp_path)}) == 3


def test_junit_counts(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    junit.write_text(
        '<testsuites><testsuite><testcase classname="t" name="test_on_the_gpu[x/y]"><properties>'
        '<property name="seconds" value="2.5"/><property name="note" value="said"/></properties>'
        "</testcase>"
        '<testcase classname="t" name="b"><failure/></testcase>'
        '<testcase classname="t" name="c"><error/></testcase>'
        '<testcase classname="t" name="d"><skipped/></testcase></testsuite></testsuites>'
    )
    assert gpu_report.count_tests(junit) == {
        "passed": 1,
        "failed": 2,
        "skipped": 1,
        "failures": ["t::b", "t::c"],
        "notes": ["x/y: said"],
        "slowest": {"x/y": 2.5},
    }


def test_command_has_no_paths() -> None:
    arguments = ["--quick", "--output", "/somewhere/gpu.json", "--merge=/else/gpu.json"]
    assert gpu_report.command_line(arguments) == "python -m bench.gpu_report --quick"


def rows_of_a_preset() -> list[dict]:
    def row(shape: AttentionShape, provider: str, ms: float | None, note: str = "") -> dict:
        timing = ms and Timing(ms, ms, ms, 1)
        one = measure.Row("bwd", shape, provider, timing, ms and 0.003, None, note)
        return gpu_report.short_row(one.as_dict())

    shape, packed = OTHER_SHAPES[6], OTHER_SHAPES[7]
    return [
        row(shape, "dash", 1.0),
        row(shape, "dash-unordered", 1.1),
        row(shape, "fa3", None, "unavailable: not installed"),
        row(packed, "dash", 2.0),
        row(packed, "dash-unordered", 1.0, "WRONG: relative error 1"),
    ]


def test_preset_table() -> None:
    table = report.preset_table(rows_of_a_preset(), "bwd")
    assert table[0] == "| shape | dash | unordered (dash / it) |"
    assert "causal, hd (192, 128), 16 heads, 4 x 4096" in table[2] and "(1.10)" in table[2]
    assert "32 packed sequences" in table[3] and table[3].endswith("| - |")
    assert report.preset_table(rows_of_a_preset(), "fwd") == []


def test_markdown_of_a_whole_report() -> None:
    text = report.markdown(
        {
            **dict.fromkeys(["device", "sms", "cuda", "torch", "cudnn", "date", "peer"], "x"),
            **{"command": "c", "source_hash": "0" * 64},
            "bench": [{"pass": "bwd", "head_dim": 64, "mask": "full", "seqlen": 1, "fa3_ms": 1.0}],
            "presets": {"shapes": {"finished": True, "rows": rows_of_a_preset()}},
            "overhead": {
                "host": {
                    "backward_us": 9.6,
                    "backward_in_gradient_us": 9.6,
                    "backward_through_autograd_us": 9.6,
                    "forward_us": 9.6,
                },
                "kernels": [{"shape": "s", "main": 100.0, "preprocess": 20.0}],
                "memory": [{"tokens": 4096, "dash": 4096 * 8300, "fp32_dq": 4096 * 8192}],
            },
        }
    )
    for part in ("ordered / FA3", "Backward, preset shapes", "10 us (the operator)", "8300"):
        assert part in text, part
    assert "preprocess 20 us" in text


def test_preset_runs_in_a_child_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it ends at once, since there is no GPU, and leaves no rows."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_report.run_preset("gqa", 120, None) == {"finished": True, "rows": []}
    assert gpu_report.run_preset("gqa", 0, None) == {"finished": False, "rows": []}


def test_bad_rows_make_a_bad_report() -> None:
    good = {
        "tests": {"failed": 0, "passed": 1, "finished": True},
        "bench": [],
        "presets": {"shapes": {"finished": True, "rows": rows_of_a_preset()[:4]}},
    }
    assert gpu_report.is_good(good)
    good["presets"]["shapes"]["rows"] = rows_of_a_preset()
    assert not gpu_report.is_good(good)


def test_readme_section_is_replaced() -> None:
    text = f"before\n{report.BEGIN}\nstale\n{report.END}\nafter\n"
    replaced = report.replace_section(text, "fresh")
    assert replaced == f"before\n{report.BEGIN}\nfresh\n{report.END}\nafter\n"
    assert report.BEGIN in (ROOT / "README.md").read_text()


def test_committed_report_is_about_this_code() -> None:
    """Warns instead of failing: a machine without a GPU cannot renew the report."""
    if not REPORT.exists():
        pytest.skip("no reports/gpu.json; `make gpu-report` on a Hopper GPU writes it")
    committed = json.loads(REPORT.read_text())
    assert {"source_hash", "device", "tests", "kernels", "bench"} <= committed.keys()
    if committed["source_hash"] != source_hash.source_hash(ROOT):
        warnings.warn(
            "reports/gpu.json is about other sources than these; "
            "renew it with `make gpu-report` on a Hopper GPU",
            stacklevel=1,
        )


def test_a_report_becomes_rows_of_the_picture() -> None:
    record = {"pass": "bwd", "mask": "causal", "batch": 2, "seqlen": 512, "head_dim": 64}
    speeds = {"ordered_tflops": 300.0, "fa3_tflops": 200.0, "peer_tflops": None}
    wrong = {"unordered_tflops": 250.0, "notes": {"unordered": "WRONG"}}
    rows = plot.rows_of_report({"bench": [record | speeds | wrong]})
    assert [(row["provider"], row["tflops"]) for row in rows] == [
        ("dash, ordered", 300.0),
        ("FA3, unordered", 200.0),
    ]
    shapes, values = plot.bars(rows, "bwd")
    assert shapes == ["causal hd64\n512"] and values["FA3, unordered"] == [200.0]


def test_test_runs_of_one_report_are_joined() -> None:
    first = {"passed": 2, "failed": 0, "skipped": 1, "failures": [], "finished": True}
    second = {"passed": 3, "failed": 1, "skipped": 0, "failures": ["x"], "finished": True}
    joined = gpu_report.joined_tests(first | {"slowest": {"a": 1.0}}, second | {"notes": ["n"]})
    assert (joined["passed"], joined["failed"], joined["skipped"]) == (5, 1, 1)
    assert (joined["failures"], joined["finished"], joined["slowest"]) == (["x"], True, {"a": 1.0})
    assert gpu_report.joined_tests(None, second) is second
