"""Timelines of executed schedules: in the terminal with rich, as Gantt charts with matplotlib.

A row per SM, a colour per KV tile, a label per Q tile. Both packages are optional and are imported
when they are needed.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from . import _schedule
from .schedule import Execution

# Background colours that black text is readable on, for the terminal and for pictures.
_COLORS = ("#8ecae6", "#ffb703", "#90be6d", "#f4978e", "#cdb4db", "#e9c46a", "#a8dadc", "#d4a373")

_STYLES: dict[str, dict[str, Any]] = {
    "plain": {"edgecolor": "white", "linewidth": 0.4},
    "add": {"edgecolor": "white", "linewidth": 0.4, "alpha": 0.75},
    "critical": {"edgecolor": "#222222", "linewidth": 1.4, "zorder": 3},
    "wait": {"edgecolor": "#999999", "linewidth": 0, "hatch": "////"},
}


def color_of(n_block: int) -> str:
    """The KV tile's colour, "#rrggbb"."""
    return _COLORS[n_block % len(_COLORS)]


def _busy_until(execution: Execution, step: _schedule.Step) -> tuple[float, float, float]:
    """When the step's compute ends, its wait ends, and the next compute may begin."""
    costs = execution.costs
    computed = step.compute_begin + costs.compute
    if costs.writers == 0:
        return computed, step.add_begin, step.add_begin + costs.reduce
    return computed, step.handed, step.handed


def print_timeline(execution: Execution, title: str, width: int | None = None) -> None:
    """Prints a row per SM: numbers are Q tiles, colours KV tiles, shaded stretches waits.

    Args:
        width: columns of the rows; None is the terminal's.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(width=width)
    console.print(title, highlight=False)
    columns = max(console.width - 8, 20)
    per_column = max(execution.makespan, 1e-9) / columns
    for slot, steps in enumerate(execution.rows):
        cells = [(" ", "")] * columns
        for step in steps:
            style = f"black on {color_of(step.tile[0])}"
            computed, waited, end = _busy_until(execution, step)
            first, last = (int(t / per_column + 0.5) for t in (step.compute_begin, end))
            label = str(step.m_block)
            for column in range(first, min(last, columns)):
                middle = (column + 0.5) * per_column
                is_waiting = computed <= middle < waited
                inside = column - first < len(label) and last - first > len(label)
                text = label[column - first] if inside else ("░" if is_waiting else " ")
                cells[column] = (text, f"{color_of(step.tile[0])}" if is_waiting else style)
        console.print(Text(f"SM {slot:3} ").append_text(Text.assemble(*cells)), soft_wrap=True)
    legend = Text("KV tile ")
    for n_block in range(min(execution.grid.num_n_blocks(), len(_COLORS))):
        legend.append(f" {n_block} ", f"black on {color_of(n_block)}")
    console.print(legend.append("   numbers: Q tiles   ░ waits"))


def save_gantt(execution: Execution, path: str, title: str = "") -> None:
    """Draws the execution as a Gantt chart.

    The upper part of a row is the products, with the number of the Q tile; the lower part the adds
    by the writers. Waits are hatched; the critical path has a dark outline.

    Args:
        path: ends in .svg, .png or another suffix that matplotlib knows.

    Raises:
        ValueError: the suffix is not known.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = 0.42 * execution.sms + 1.1
    # Reproducible files: text as text, and ids from a fixed salt.
    settings = {"svg.fonttype": "none", "svg.hashsalt": "dash", "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(10.0, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _draw(execution, axes)
        axes.set_title(title, fontsize=8, loc="left")
        is_svg = path.endswith(".svg")
        figure.savefig(path, dpi=120, metadata={"Date": None} if is_svg else None)


def _draw(execution: Execution, axes: Any) -> None:
    costs = execution.costs
    on_path = {(step, kind) for kind, step in execution.critical_path}
    # (bottom, height, colour, "critical", "plain", "add" or "wait") -> [(begin, width)]
    bars: dict[tuple[float, float, str, str], list[tuple[float, float]]] = defaultdict(list)
    for slot, steps in enumerate(execution.rows):
        product = (slot + 0.1, 0.8) if costs.writers == 0 else (slot + 0.08, 0.58)
        add = product if costs.writers == 0 else (slot + 0.72, 0.2)
        for step in steps:
            computed, waited, _ = _busy_until(execution, step)
            color = color_of(step.tile[0])
            kind = "critical" if (step, "compute") in on_path else "plain"
            bars[(*product, color, kind)].append((step.compute_begin, costs.compute))
            kind = "critical" if (step, "add") in on_path else "add"
            if costs.reduce > 0:
                bars[(*add, color, kind)].append((step.add_begin, costs.reduce))
            if waited > computed:
                bars[(*product, "none", "wait")].append((computed, waited - computed))
            if costs.compute > execution.makespan / 90:
                middle = (step.compute_begin + costs.compute / 2, product[0] + product[1] / 2)
                place = {"ha": "center", "va": "center", "zorder": 4}  # above critical bars
                axes.text(*middle, str(step.m_block), fontsize=6, **place)
    for (bottom, height, color, kind), spans in bars.items():
        axes.broken_barh(spans, (bottom, height), facecolor=color, clip_on=False, **_STYLES[kind])
    axes.set_xlim(0.0, execution.makespan)
    axes.set_ylim(execution.sms, 0.0)
    axes.set_yticks([slot + 0.5 for slot in range(execution.sms)])
    axes.set_yticklabels([f"SM {slot}" for slot in range(execution.sms)], fontsize=7)
    axes.tick_params(axis="x", labelsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
