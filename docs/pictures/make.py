"""Draws the pictures of docs/schedules.md beside this file: `make schedule-pictures`."""

from __future__ import annotations

from pathlib import Path

from dash import schedule
from dash.schedule_cli import COSTS, summary
from dash.schedule_picture import save_gantt

HERE = Path(__file__).parent
MASKS = {
    "full": ((-1, -1), ("ascending", "shift", "band", "ring")),
    "causal": (
        (-1, 0),
        ("shortest_first", "descending", "symmetric_shift", "band", "mirrored", "comb"),
    ),
    "window": ((3, 0), ("shortest_first", "band")),  # in Q tiles, which are one row high
}


def main() -> None:
    """8 Q tiles, 4 KV tiles, on 4 SMs; 2 heads with a full mask, 4 with another one."""
    for mask, (window, names) in MASKS.items():
        for name in names:
            heads = 2 if mask == "full" else 4
            grid = schedule.square_grid(
                name, window=window, q_tiles=8, kv_tiles=4, heads=heads, section=2
            )
            execution = schedule.execute(grid, 4, COSTS["kernel"])
            save_gantt(execution, str(HERE / f"{name}_{mask}.svg"), summary(execution))


if __name__ == "__main__":
    main()
