"""Tables on a narrow terminal: less room between columns, wrapped words, then several tables below each other.

No number ever loses a digit, and no column is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.table import Column, Table
from rich.text import Text

NARROWEST = 12
"""Columns of words are not made narrower, unless they are."""
LONGEST_WORD = 24
"""Words up to here are not broken."""


def fitted(table: Table, width: int) -> list[Table]:
    """The table as it fits a width: itself, with its columns set, or in blocks that repeat the first column."""
    columns = table.columns
    natural, least = [_natural(column) for column in columns], [_least(column) for column in columns]
    usual = 3 * len(columns) + 1  # room between the columns and around them
    if sum(natural) + usual <= width:
        return [table]
    blocks = _blocks(least, width)
    if len(blocks) > 1:
        return [
            made for block in blocks for made in fitted(_part(table, block, first=block is blocks[0]), width)
        ]
    if sum(least) + usual > width:
        table.padding, table.show_edge, usual = (0, 0), False, len(columns) - 1
    for column, chosen in zip(columns, _widths(natural, least, width - usual), strict=True):
        column.width, column.overflow = chosen, "fold"
    return [table]


def _blocks(least: Sequence[int], width: int) -> list[list[int]]:
    """Which columns stand in which block; the first stands in all."""
    found: list[list[int]] = [[0]] if least else [[]]
    for place in range(1, len(least)):
        block = [*found[-1], place]
        if len(found[-1]) > 1 and sum(least[one] for one in block) + len(block) - 1 > width:
            found.append([0, place])
        else:
            found[-1] = block
    return found


def _widths(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Natural widths, of which the widest columns give up what is too much."""
    chosen = list(natural)
    while sum(chosen) > room:
        over = [place for place, width in enumerate(chosen) if width > least[place]]
        if not over:
            break
        chosen[max(over, key=lambda place: chosen[place])] -= 1
    return chosen


def _part(table: Table, places: Sequence[int], first: bool) -> Table:
    made = Table(title=table.title if first else None, title_justify="left", box=table.box)
    cells = [list(table.columns[place].cells) for place in places]
    for place in places:
        column = table.columns[place]
        made.add_column(column.header, justify=column.justify, style=column.style, no_wrap=column.no_wrap)
    for number, row in enumerate(table.rows):
        made.add_row(*(column[number] for column in cells), style=row.style, end_section=row.end_section)
    return made


def _natural(column: Column) -> int:
    return _widest(line for text in _texts(column) for line in text.splitlines())


def _least(column: Column) -> int:
    """Of numbers all digits, and the longest word of the title; of words enough to read them; of commands all."""
    header, *cells = _texts(column)
    if column.no_wrap:
        return _natural(column)
    if column.justify != "right":
        longest = _widest(word for text in (header, *cells) for word in text.split())
        return min(_natural(column), max(NARROWEST, min(longest, LONGEST_WORD)))
    return _widest([*header.split(), *(line for text in cells for line in text.splitlines())])


def _widest(texts: Iterable[str]) -> int:
    return max((cell_len(text) for text in texts), default=0)


def _texts(column: Column) -> list[str]:
    return [
        Text.from_markup(part).plain if isinstance(part, str) else str(part)
        for part in (column.header, *column.cells)
    ]
