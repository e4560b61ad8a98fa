"""Tables on a terminal: rich if it is installed, else plain aligned columns."""

from __future__ import annotations

import importlib.util


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Prints rows of text; the first column is left-aligned, the others right-aligned."""
    if importlib.util.find_spec("rich") is not None:
        from rich.console import Console
        from rich.table import Table

        table = Table(*header)
        for index, column in enumerate(table.columns):
            column.justify = "left" if index == 0 else "right"
            column.no_wrap = True
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    for line in [header, ["-" * width for width in widths], *rows]:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


def number(value: float | None, digits: int) -> str:
    """A number with fixed digits, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
