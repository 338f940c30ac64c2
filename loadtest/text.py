"""Tables as plain text."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, left: bool = False) -> str:
    """The first column to the left, and so the others if `left`; else to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *rest = (
            cell.ljust(width) if left or column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)
