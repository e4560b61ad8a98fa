"""The GPU report's parts that need no GPU, and whether the committed report is about this code."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from bench import gpu_report, report, source_hash

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
        '<testsuites><testsuite><testcase classname="t" name="a"/>'
        '<testcase classname="t" name="b"><failure/></testcase>'
        '<testcase classname="t" name="c"><error/></testcase>'
        '<testcase classname="t" name="d"><skipped/></testcase></testsuite></testsuites>'
    )
    assert gpu_report.count_tests(junit) == {
        "passed": 1,
        "failed": 2,
        "skipped": 1,
        "failures": ["t::b", "t::c"],
    }


def test_command_has_no_paths() -> None:
    arguments = ["--quick", "--output", "/somewhere/gpu.json", "--merge=/else/gpu.json"]
    assert gpu_report.command_line(arguments) == "python -m bench.gpu_report --quick"


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
