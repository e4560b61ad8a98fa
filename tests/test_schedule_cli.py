"""`python -m dash schedule`: show, compare, table; and what it says when a package is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dash import _schedule, schedule, schedule_picture
from dash.__main__ import main

SHOW = ["schedule", "show", "--q-tiles", "8", "--kv-tiles", "4", "--heads", "2", "--sms", "4"]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "table", "--mask", "causal", "--head-dim", "64"]) == 0
    assert "n_block" in capsys.readouterr().out
    assert main(["schedule", "table", "--policy", "shortest_first"]) == 2
    assert "shortest_first" in capsys.readouterr().err
    assert main(["schedule", "table", "--policy", "shift", "--seqlen-q", "64"]) == 2
    assert "1 Q tiles" in capsys.readouterr().err


def test_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "compare", "--shape", "llama3-8b", "--seqlen", "2048"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0].partition("/")[0] for line in lines[2:]]
    assert set(names) == {
        name for name in _schedule.schedules() if _schedule.supports(name, (-1, 0))
    }
    assert sum("(auto)" in line for line in lines) == 1
    assert "Query groups in 2 part(s)" in lines[0] and "band/2" in {
        line.split()[0] for line in lines
    }
    unordered = next(line for line in lines if line.startswith("unordered"))
    assert "1.000" in unordered and unordered.endswith("none")
    arguments = ["schedule", "compare", "--mask", "full", "--sms", "8", "--seqlen", "2048"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines() if "does not fit" in line] == [
        "shift",
        "ring",
    ]
    assert main(["schedule", "compare", "--sms", "0"]) == 2


def test_windows(capsys: pytest.CaptureFixture[str]) -> None:
    window = ["--mask", "window", "--window"]
    lengths = ["--seqlen-q", "1024", "--seqlen-k", "1024"]
    assert main(["schedule", "table", *lengths, *window, "256", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("band, window (256, 0), seqlen 1024 x 1024, tiles 64 x 128")
    assert lines[2].split() == ["n_block", "1", "7:0", "6:0", "5:1", "4:1", "3:1", "2:1"]
    compare = ["schedule", "compare", "--shape", "mha-hd128", "--seqlen", "4096"]
    assert main([*compare, *window, "512", "-1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = {line.split()[0] for line in lines[2:]}
    assert names == {n for n in _schedule.schedules() if _schedule.supports(n, (512, -1))}
    assert sum(line.startswith("band (auto)") for line in lines) == 1
    assert main(["schedule", "table", "--policy", "comb", *window, "256", "0"]) == 2
    assert "comb" in capsys.readouterr().err
    for half in (["--mask", "window"], ["--window", "3", "0"]):
        assert main(["schedule", "table", *half]) == 2
        assert "go together" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--policy", "shift", "--mask", "causal"], "legal for a causal mask with 8 Q tiles"),
        (["--policy", "nothing"], "'nothing' is not known"),
        (["--policy", "shift", "--sms", "3"], "needs 4 SMs at once"),
        (["--sms", "0"], "--sms 0"),
        (["--heads", "0"], "heads=0"),
    ],
)
def test_show_refuses(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHOW, *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("package, more", [("rich", []), ("matplotlib", ["--out", "x.svg"])])
def test_a_missing_package_is_named(
    package: str,
    more: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert main([*SHOW, *more]) == 2
    said = capsys.readouterr().err
    assert package in said and "pip install 'dash-attn[plot]'" in said


def test_show_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    assert main([*SHOW, "--policy", "ascending", "--costs", "paper"]) == 0
    said = capsys.readouterr().out
    assert sum(line.startswith("SM ") for line in said.splitlines()) == 4
    assert "░" in said and "makespan" in said


@pytest.mark.parametrize("suffix, start", [("svg", b"<?xml"), ("png", b"\x89PNG")])
@pytest.mark.parametrize("costs", ["paper", "kernel"])
def test_show_draws_a_picture(suffix: str, start: bytes, costs: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / f"x.{suffix}"
    arguments = ["--policy", "mirrored", "--mask", "causal", "--costs", costs, "--out", str(out)]
    assert main([*SHOW, *arguments]) == 0
    assert out.read_bytes().startswith(start)


def test_pictures_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    grid = schedule.square_grid("band", causal=True, q_tiles=8, kv_tiles=4, heads=2)
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        schedule_picture.save_gantt(schedule.execute(grid, 4), str(file))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_committed_pictures_show_every_policy() -> None:
    folder = Path(__file__).resolve().parents[1] / "docs/pictures"
    drawn = {file.stem.rsplit("_", 1)[0] for file in folder.glob("*.svg")}
    assert drawn == {name for name in _schedule.schedules() if name != "unordered"}
    text = (folder.parent / "schedules.md").read_text()
    for file in folder.glob("*.svg"):
        assert f"pictures/{file.name}" in text, f"{file.name} is not shown"
