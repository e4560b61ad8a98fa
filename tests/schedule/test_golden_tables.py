"""Small orders written out by hand."""

from __future__ import annotations

from dash import _schedule
from dash.schedule import dispatch, render, walks


def table(text: str) -> list[list[tuple[int, int]]]:
    """Lines of "m,turn m,turn ...", one per n_block."""
    return [
        [tuple(map(int, visit.split(","))) for visit in line.split()]
        for line in text.strip().splitlines()
    ]


def test_band_causal() -> None:
    grid = _schedule.TileGrid(384, 384, 64, 128, causal=True, schedule="band")
    assert walks(grid) == table("""
        5,0 4,0 3,0 2,0 1,0 0,0
        5,1 4,1 3,1 2,1
        5,2 4,2
    """)


def test_band_full() -> None:
    grid = _schedule.TileGrid(240, 384, 80, 128, schedule="band")
    assert walks(grid) == table("""
        0,0 1,0 2,0
        0,1 1,1 2,1
        0,2 1,2 2,2
    """)


def test_ascending_causal() -> None:
    grid = _schedule.TileGrid(384, 384, 64, 128, causal=True, schedule="ascending")
    assert walks(grid) == table("""
        0,0 1,0 2,0 3,0 4,0 5,0
        2,1 3,1 4,1 5,1
        4,2 5,2
    """)


def test_shortest_first_causal() -> None:
    grid = _schedule.TileGrid(384, 384, 64, 128, causal=True, schedule="shortest_first")
    assert walks(grid) == table("""
        0,0 1,0 2,1 3,1 4,2 5,2
        2,0 3,0 4,1 5,1
        4,0 5,0
    """)
    assert [n for n, _, _ in dispatch(grid)] == [2, 1, 0]


def test_more_queries_than_keys_causal() -> None:
    """Rows 0 .. 127 see no key: their Q tiles have no contributor."""
    grid = _schedule.TileGrid(256, 128, 64, 64, causal=True, schedule="band")
    assert walks(grid) == table("""
        3,0 2,0
        3,1
    """)
    assert [grid.num_contributors(m) for m in range(4)] == [0, 0, 1, 2]


def test_more_keys_than_queries_causal() -> None:
    grid = _schedule.TileGrid(128, 256, 64, 64, causal=True, schedule="band")
    assert walks(grid) == table("""
        1,0 0,0
        1,1 0,1
        1,2 0,2
        1,3
    """)


def test_sections() -> None:
    """5 heads, 3 KV tiles, sections of 2 heads; written (head, n_block)."""
    grid = _schedule.TileGrid(384, 384, 128, 128, num_heads=5, section=2, schedule="band")
    order = [(h, n) for n, h, _ in dispatch(grid)]
    assert order == [
        *[(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)],
        *[(2, 0), (3, 0), (2, 1), (3, 1), (2, 2), (3, 2)],
        *[(4, 0), (4, 1), (4, 2)],
    ]


def test_sections_span_batch_entries() -> None:
    grid = _schedule.TileGrid(256, 256, 128, 128, num_heads=3, batch=2, section=4, schedule="band")
    assert dispatch(grid)[:4] == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 0, 1)]
    assert dispatch(grid)[8:] == [(0, 1, 1), (0, 2, 1), (1, 1, 1), (1, 2, 1)]


def test_legal_masks_and_defaults() -> None:
    assert _schedule.schedules() == ["ascending", "shortest_first", "band", "unordered"]
    assert [_schedule.supports(name, False) for name in _schedule.schedules()] == [
        *[True, False, True, True]
    ]
    assert all(_schedule.supports(name, True) for name in _schedule.schedules())
    assert _schedule.supports(_schedule.choose(False), False)
    assert _schedule.supports(_schedule.choose(True), True)


def test_render_prints_the_table() -> None:
    lines = render("band", causal=True, seqlen_q=384, seqlen_k=384, head_dim=128).splitlines()
    assert len(lines) == 4
    assert lines[2].split() == ["n_block", "1", "5:1", "4:1", "3:1", "2:1"]
