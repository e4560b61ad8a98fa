"""Draws the pictures of docs/schedules.md beside this file: `make schedule-pictures`."""

from __future__ import annotations

from pathlib import Path

from dash import schedule
from dash.schedule_cli import COSTS, summary
from dash.schedule_picture import save_gantt

HERE = Path(__file__).parent
FULL = ("ascending", "shift", "band", "ring")
CAUSAL = ("shortest_first", "descending", "symmetric_shift", "band", "mirrored", "comb")


def main() -> None:
    """8 Q tiles, 4 KV tiles, on 4 SMs; 2 heads with a full mask, 4 with a causal one."""
    for causal, names in ((False, FULL), (True, CAUSAL)):
        for name in names:
            grid = schedule.square_grid(
                name, causal=causal, q_tiles=8, kv_tiles=4, heads=4 if causal else 2, section=2
            )
            execution = schedule.execute(grid, 4, COSTS["kernel"])
            mask = "causal" if causal else "full"
            save_gantt(execution, str(HERE / f"{name}_{mask}.svg"), summary(execution))


if __name__ == "__main__":
    main()
