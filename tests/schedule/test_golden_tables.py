"""Small orders written out by hand."""

from __future__ import annotations

import pytest

from dash import _schedule
from dash.schedule import dispatch, items, render, walks

from .oracle import CAUSAL, FULL, legal_schedules


def table(text: str) -> list[list[tuple[int, int]]]:
    """Lines of "m,turn m,turn ...", one per n_block."""
    return [
        [tuple(map(int, visit.split(","))) for visit in line.split()]
        for line in text.strip().splitlines()
    ]


def test_band_causal() -> None:
    grid = _schedule.TileGrid(384, 384, 64, 128, window=CAUSAL, schedule="band")
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
    grid = _schedule.TileGrid(384, 384, 64, 128, window=CAUSAL, schedule="ascending")
    assert walks(grid) == table("""
        0,0 1,0 2,0 3,0 4,0 5,0
        2,1 3,1 4,1 5,1
        4,2 5,2
    """)


def test_shortest_first_causal() -> None:
    grid = _schedule.TileGrid(384, 384, 64, 128, window=CAUSAL, schedule="shortest_first")
    assert walks(grid) == table("""
        0,0 1,0 2,1 3,1 4,2 5,2
        2,0 3,0 4,1 5,1
        4,0 5,0
    """)
    assert [n for n, _, _ in dispatch(grid)] == [2, 1, 0]


def test_descending_causal() -> None:
    grid = _schedule.TileGrid(384, 384, 64, 128, 2, window=CAUSAL, schedule="descending")
    assert walks(grid) == table("""
        5,0 4,0 3,0 2,0 1,0 0,0
        5,1 4,1 3,1 2,1
        5,2 4,2
    """)
    assert [(h, n) for n, h, _ in dispatch(grid)] == [
        *[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    ]


def test_descending_full() -> None:
    grid = _schedule.TileGrid(240, 256, 80, 128, schedule="descending")
    assert walks(grid) == table("""
        2,0 1,0 0,0
        2,1 1,1 0,1
    """)


def test_comb_causal() -> None:
    grid = _schedule.TileGrid(512, 512, 128, 128, window=CAUSAL, schedule="comb")
    assert [n for n, _, _ in dispatch(grid)] == [0, 2, 1, 3]
    assert walks(grid) == table("""
        3,0 2,0 1,0 0,0
        3,2 2,2 1,1
        3,1 2,1
        3,3
    """)


def test_comb_in_blocks_of_16() -> None:
    """20 KV tiles: 0 2 .. 14, 1 3 .. 15, then 16 18 17 19."""
    grid = _schedule.TileGrid(20 * 128, 20 * 128, 128, 128, window=CAUSAL, schedule="comb")
    order = [n for n, _, _ in dispatch(grid)]
    assert order == [*range(0, 16, 2), *range(1, 16, 2), 16, 18, 17, 19]
    last = sorted(range(20), key=lambda n: _schedule.turn(grid, n, 19))
    assert last == order


def test_shift_full() -> None:
    grid = _schedule.TileGrid(480, 384, 80, 128, schedule="shift")
    assert _schedule.gang_size(grid) == 3
    assert walks(grid) == table("""
        2,0 3,0 4,0 5,0 0,1 1,2
        1,0 2,1 3,1 4,1 5,1 0,2
        0,0 1,1 2,2 3,2 4,2 5,2
    """)


def test_ring_full() -> None:
    """M = 6, N = 3: starts 4, 2, 0."""
    grid = _schedule.TileGrid(480, 384, 80, 128, schedule="ring")
    assert _schedule.gang_size(grid) == 3
    assert walks(grid) == table("""
        4,0 5,0 0,1 1,1 2,2 3,2
        2,0 3,0 4,1 5,1 0,2 1,2
        0,0 1,0 2,1 3,1 4,2 5,2
    """)


def test_ring_in_two_gangs() -> None:
    """M = 6, N = 5: even KV tiles start at 4, 2, 0 and add first, odd ones start at 3 and 0."""
    grid = _schedule.TileGrid(768, 640, 128, 128, num_heads=2, schedule="ring", section=2)
    assert _schedule.gang_size(grid) == 3
    evens = [[(n, h, 0)] for h in range(2) for n in (0, 2, 4)]
    odds = [[(n, h, 0)] for h in range(2) for n in (1, 3)]
    assert items(grid) == evens + odds
    ends = [_schedule.gang_end(grid, ticket) for ticket in range(10)]
    assert ends == [3, 3, 3, 6, 6, 6, 8, 8, 10, 10]
    assert walks(grid) == table("""
        4,0 5,0 0,1 1,1 2,2 3,2
        3,3 4,3 5,3 0,4 1,4 2,4
        2,0 3,0 4,1 5,1 0,2 1,2
        0,3 1,3 2,3 3,4 4,4 5,4
        0,0 1,0 2,1 3,1 4,2 5,2
    """)


def test_symmetric_shift_causal() -> None:
    grid = _schedule.TileGrid(512, 512, 128, 128, window=CAUSAL, schedule="symmetric_shift")
    assert _schedule.gang_size(grid) == 2
    assert sorted(items(grid)) == [[(0, 0, 0), (3, 0, 0)], [(1, 0, 0), (2, 0, 0)]]
    assert walks(grid) == table("""
        1,0 2,1 3,1 0,0
        2,0 3,0 1,1
        3,2 2,2
        3,3
    """)


def test_symmetric_shift_with_a_middle_tile_and_steps_of_two() -> None:
    """N = 3, M = 6: the middle tile 1 is an item of its own; starts 2 and 4 of Q tiles 2 .. 5."""
    grid = _schedule.TileGrid(384, 384, 64, 128, window=CAUSAL, schedule="symmetric_shift")
    assert sorted(items(grid)) == [[(0, 0, 0), (2, 0, 0)], [(1, 0, 0)]]
    assert walks(grid) == table("""
        2,0 3,0 4,1 5,1 0,0 1,0
        4,0 5,0 2,1 3,1
        5,2 4,2
    """)


def test_mirrored_causal() -> None:
    """Even heads as shortest_first, odd ones as band."""
    grid = _schedule.TileGrid(384, 384, 64, 128, 4, window=CAUSAL, schedule="mirrored", section=1)
    even, odd = walks(grid, 0), walks(grid, 1)
    assert even == walks(grid, 2) and odd == walks(grid, 3)
    assert even == table("""
        0,0 1,0 2,1 3,1 4,2 5,2
        2,0 3,0 4,1 5,1
        4,0 5,0
    """)
    assert odd == table("""
        5,0 4,0 3,0 2,0 1,0 0,0
        5,1 4,1 3,1 2,1
        5,2 4,2
    """)
    assert [(h, n) for n, h, _ in dispatch(grid)] == [
        *[(0, 2), (0, 1), (0, 0), (1, 0), (1, 1), (1, 2)],
        *[(2, 2), (2, 1), (2, 0), (3, 0), (3, 1), (3, 2)],
    ]


def test_mirrored_sections_of_an_odd_number_of_heads() -> None:
    """3 heads, 2 batch entries, sections of 3 lists, 2 KV tiles: 4 even lists, 2 odd ones. Written
    (batch entry, head, n_block)."""
    grid = _schedule.TileGrid(256, 256, 128, 128, 3, 2, CAUSAL, "mirrored", 3)
    assert [(b, h, n) for n, h, b in dispatch(grid)] == [
        *[(0, 0, 1), (0, 2, 1), (1, 0, 1), (0, 0, 0), (0, 2, 0), (1, 0, 0)],
        *[(0, 1, 0), (1, 1, 0), (0, 1, 1), (1, 1, 1)],
        *[(1, 2, 1), (1, 2, 0)],
    ]


def test_band_window() -> None:
    """256 keys to the left of one's own, none to the right: n sees Q tiles n, n + 1, n + 2."""
    grid = _schedule.TileGrid(1024, 1024, 128, 128, window=(256, 0), schedule="band")
    assert walks(grid)[:4] == table("""
        2,0 1,0 0,0
        3,0 2,1 1,1
        4,0 3,1 2,2
        5,0 4,1 3,2
    """)


def test_ascending_and_descending_window() -> None:
    """As many Q tiles as in band's window, one row less to the left: Q tile m sees n = m - 1, m."""
    grid = _schedule.TileGrid(384, 384, 128, 128, window=(127, 0), schedule="ascending")
    assert walks(grid) == table("""
        0,0 1,0
        1,1 2,0
        2,1
    """)
    grid = _schedule.TileGrid(384, 384, 128, 128, window=(128, 0), schedule="descending")
    assert walks(grid) == table("""
        1,0 0,0
        2,0 1,1
        2,1
    """)


def test_shortest_first_window() -> None:
    """Keys to the right only: rows of Q tile m see KV tiles m and later ones, up to m + 1."""
    grid = _schedule.TileGrid(256, 256, 64, 64, window=(0, 64), schedule="shortest_first")
    assert walks(grid) == table("""
        0,1
        0,0 1,1
        1,0 2,1
        2,0 3,0
    """)
    assert [n for n, _, _ in dispatch(grid)] == [3, 2, 1, 0]


def test_a_window_with_more_queries_than_keys() -> None:
    """Row i's own key is i - 128: rows 0 .. 63 see none; rows j + 64 .. j + 160 see key j."""
    grid = _schedule.TileGrid(256, 128, 64, 64, window=(32, 64), schedule="band")
    assert walks(grid) == table("""
        3,0 2,0 1,0
        3,1 2,1
    """)
    assert [grid.num_contributors(m) for m in range(4)] == [0, 1, 2, 2]


def test_keys_that_no_query_sees() -> None:
    """The last query's window begins at key 253: KV tiles 0 .. 2 have no Q tile and no turn."""
    grid = _schedule.TileGrid(1, 256, 64, 64, window=(2, 0), schedule="band")
    assert walks(grid) == [[], [], [], [(0, 0)]]
    assert len(dispatch(grid)) == 4


def test_more_queries_than_keys_causal() -> None:
    """Rows 0 .. 127 see no key: their Q tiles have no contributor."""
    grid = _schedule.TileGrid(256, 128, 64, 64, window=CAUSAL, schedule="band")
    assert walks(grid) == table("""
        3,0 2,0
        3,1
    """)
    assert [grid.num_contributors(m) for m in range(4)] == [0, 0, 1, 2]


def test_more_keys_than_queries_causal() -> None:
    grid = _schedule.TileGrid(128, 256, 64, 64, window=CAUSAL, schedule="band")
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
    any_mask = {"ascending", "descending", "band", "unordered"}
    assert set(legal_schedules("full")) == {*any_mask, "shift", "ring"}
    only_causal = {"symmetric_shift", "mirrored", "comb"}
    assert set(legal_schedules("causal")) == {*any_mask, *only_causal, "shortest_first"}
    assert set(legal_schedules("window")) == {*any_mask, "shortest_first"}
    assert set(legal_schedules("full", packed=True)) == any_mask
    assert set(legal_schedules("causal", packed=True)) == {
        *any_mask,
        *("shortest_first", "mirrored", "comb"),
    }
    assert set(legal_schedules("window", packed=True)) == {*any_mask, "shortest_first"}
    assert _schedule.schedules()[-1] == "unordered"
    for name in _schedule.schedules():
        claim = name != "unordered"
        assert _schedule.claims(name) == (claim, claim, claim)


SIZES = [(1, 512, 512, 1, 1), (8, 4096, 4096, 32, 8), (1, 100, 5000, 16, 16)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("window", [FULL, CAUSAL, (100, 0), (0, 7), (-1, 7)])
@pytest.mark.parametrize("packed, softcap", [(False, False), (False, True), (True, False)])
def test_auto_is_legal_and_ordered(
    sizes: tuple[int, ...], window: tuple[int, int], packed: bool, softcap: bool
) -> None:
    for head_dim in _schedule.supported_head_dims():
        call = ("bf16", head_dim, window, *sizes)
        features = {"packed": packed, "softcap": softcap}
        name, depends_on_batch = _schedule.choose(*call, **features)
        grid = _schedule.make_grid(*call, name, **features)
        assert _schedule.is_legal(grid) and _schedule.is_ordered(grid)
        assert _schedule.supports(name, window, packed)
        if packed or window not in (FULL, CAUSAL):
            assert name.partition("/")[0] == "band"
        names = {
            _schedule.choose(*call[:3], batch, *sizes[1:], **features)[0]
            for batch in (*range(1, 40), 100, 1_000, 10_000)
        }
        if packed:  # the neighbours' lengths decide too
            names |= {
                _schedule.choose(*call[:3], 1, sizes[1], longest, *sizes[3:], **features)[0]
                for longest in (1, 100, 1_000)
            }
        assert depends_on_batch == (len(names) > 1)
        name, _ = _schedule.choose(*call, num_ctas=1, **features)
        assert _schedule.gang_size(_schedule.make_grid(*call, name, **features)) == 1


def test_a_section_size_can_be_named() -> None:
    shape = ("bf16", 128, CAUSAL, 2, 1024, 1024, 8, 8)
    assert _schedule.make_grid(*shape, "band@3").section == 3
    assert _schedule.make_grid(*shape, "mirrored@100").section == 16
    for wrong in ("band@", "band@0", "band@-1", "band@x", "band@9999999999", "nothing@3"):
        with pytest.raises(ValueError, match="is not known"):
            _schedule.make_grid(*shape, wrong)


def test_query_groups_can_be_cut_into_parts() -> None:
    shape = ("bf16", 128, CAUSAL, 2, 1024, 1024, 24, 4)
    for parts in (1, 2, 3, 6):
        grid = _schedule.make_grid(*shape, f"band/{parts}@5")
        assert (grid.num_heads, grid.section) == (4 * parts, 5)
        assert len(set(dispatch(grid))) == 2 * 4 * parts * grid.num_n_blocks()
        alone = _schedule.sequence_grid(grid, 1024, 1024)
        assert (alone.num_heads, walks(alone, 4 * parts - 1)) == (4 * parts, walks(grid))
    assert _schedule.make_grid(*shape, "band").num_heads == 4
    for wrong in ("band/4", "band/5", "band/24"):
        with pytest.raises(ValueError, match="do not divide a group of 6 query heads"):
            _schedule.make_grid(*shape, wrong)
    for wrong in ("band/", "band/0", "band/-1", "band/x", "band/2@", "band@2/2", "nothing/2"):
        with pytest.raises(ValueError, match="is not known"):
            _schedule.make_grid(*shape, wrong)


@pytest.mark.parametrize(
    "window, sizes, parts",
    [
        (CAUSAL, (1, 5000, 5000, 28, 4), 7),
        (CAUSAL, (64, 5000, 5000, 28, 4), 7),  # 7 heads a part would be too many
        (CAUSAL, (1, 8192, 8192, 64, 8), 4),  # long lists: two heads a part
        (CAUSAL, (1, 8192, 8192, 32, 8), 2),
        (CAUSAL, (1, 32_768, 32_768, 32, 8), 1),  # of many waves
        ((9000, 0), (1, 8192, 8192, 32, 8), 1),
        (CAUSAL, (1, 2048, 2048, 32, 8), 2),
        (CAUSAL, (1, 4096, 4096, 32, 8), 1),
        (CAUSAL, (1, 512, 512, 32, 8), 4),  # single heads, and still few work tiles
        (CAUSAL, (1, 4096, 4096, 32, 1), 8),
        (CAUSAL, (1, 128, 128, 16, 16), 1),
        (CAUSAL, (1, 8192, 8192, 16, 2), 4),  # 2 parts would be 4 lists
        (CAUSAL, (1, 128, 131_072, 64, 1), 1),  # dK and dV of parts would be many times dQ
        (CAUSAL, (1, 4096, 8192, 64, 8), 4),
        ((500, 0), (1, 2048, 2048, 32, 8), 2),
        (FULL, (1, 2048, 2048, 32, 8), 1),  # 128 work tiles: one full wave
        (FULL, (1, 2048, 2048, 64, 8), 2),
        (FULL, (1, 8192, 8192, 64, 8), 1),
        (FULL, (1, 5000, 5000, 28, 4), 7),
        (FULL, (64, 5000, 5000, 28, 4), 1),
    ],
)
def test_auto_cuts_query_groups_where_the_sms_would_be_idle(
    window: tuple[int, int], sizes: tuple[int, ...], parts: int
) -> None:
    name, _ = _schedule.choose("bf16", 128, window, *sizes)
    assert int(name.partition("/")[2] or 1) == parts


def test_render_prints_the_table() -> None:
    lines = render("band", causal=True, seqlen_q=384, seqlen_k=384, head_dim=128).splitlines()
    assert len(lines) == 4
    assert lines[2].split() == ["n_block", "1", "5:1", "4:1", "3:1", "2:1"]


@pytest.mark.parametrize(
    "head_dim, window, sizes, name",
    [
        (128, FULL, (1, 4096, 4096, 8, 8), "ring"),
        (128, FULL, (1, 8192, 8192, 8, 8), "ring"),  # 512 work tiles of 132 a wave
        (64, FULL, (1, 8192, 8192, 8, 8), "ring"),  # two gangs of 32 a head, of 4 heads at a time
        (64, FULL, (1, 4096, 4096, 8, 8), "ring"),
        (64, FULL, (1, 4096, 4096, 12, 12), "shift"),  # ring: 4 waves instead of 3
        (64, FULL, (1, 4096, 4096, 4, 4), "shift"),  # ring: 2 waves instead of 1
        (64, FULL, (4, 4096, 4096, 32, 32), "band"),
        (128, FULL, (1, 8192, 8192, 16, 16), "ring"),
        (128, FULL, (1, 6144, 6144, 8, 8), "band"),  # two gangs of 48 leave 36 SMs idle
        (128, FULL, (1, 6144, 6144, 2, 2), "ring"),
        (128, FULL, (1, 4096, 4096, 32, 8), "shift"),
        (128, FULL, (1, 8192, 8192, 32, 8), "shift"),  # 512 work tiles of 132 a wave
        (128, FULL, (1, 16_384, 16_384, 16, 16), "band"),
        (128, CAUSAL, (1, 2048, 2048, 8, 8), "band"),  # no more work tiles than SMs
        (128, CAUSAL, (1, 4096, 4096, 8, 8), "mirrored"),
        (128, CAUSAL, (1, 2048, 2048, 32, 8), "mirrored/2"),
        (128, CAUSAL, (1, 4096, 4096, 32, 8), "band"),
        (256, CAUSAL, (4, 4096, 4096, 8, 8), "shortest_first"),
        (256, CAUSAL, (1, 16_384, 16_384, 8, 8), "comb"),
        (256, CAUSAL, (16, 1024, 1024, 8, 8), "mirrored"),
    ],
)
def test_auto_is_what_was_measured_best(
    head_dim: int, window: tuple[int, int], sizes: tuple[int, ...], name: str
) -> None:
    assert _schedule.choose("bf16", head_dim, window, *sizes)[0] == name
