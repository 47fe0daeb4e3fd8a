"""Which columns of a table there is room for: what a table can do without is declared with it, and in which order.

Widths are counted in terminal cells; who draws the table measures them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """How a table gives way. A column that is named nowhere here stays, and whole: who it is and how it is."""

    prose: str
    """The column of free text: it is cut, visibly, to the room that the others leave."""
    spare: tuple[str, ...] = ()
    """Worth less than the end of a sentence in `prose`: given up first, the first one first."""
    scarce: tuple[str, ...] = ()
    """Worth more than that: given up only where not even the beginning of a sentence has room."""


def kept(needs: Mapping[str, int], order: Iterable[str], room: int) -> tuple[str, ...]:
    """The columns that remain when those of `order` are given up, one after the other, until the rest has room.

    `needs` is what each column takes, in the table's order. All of `order` may go and the rest still be too wide.
    """
    gone: list[str] = []
    taken = sum(needs.values())
    for name in order:
        if taken <= room:
            break
        if name in needs and name not in gone:
            gone.append(name)
            taken -= needs[name]
    return tuple(name for name in needs if name not in gone)


def fit(
    needs: Mapping[str, int], layout: Layout, room: int, *, empty: Iterable[str] = (), gap: int, least: int
) -> dict[str, int]:
    """Column → width, for those that are shown in `room`. Only `prose` may get less than it needs.

    `empty` are columns that say nothing in any row; `gap` stands between two columns; `least` is how much of the prose
    is worth its place.
    """
    room += gap
    wants = {name: need + gap for name, need in needs.items()}
    left = kept(wants, (*empty, *layout.spare), room)
    wants = {name: wants[name] for name in left}
    if sum(wants.values()) > room:
        if layout.prose in wants:
            wants[layout.prose] = min(wants[layout.prose], least + gap)
        left = kept(wants, layout.scarce, room)
        # A wide one that had to go may have left room for narrow ones that went before it.
        taken = sum(wants[name] for name in left)
        for name in reversed(layout.scarce):
            if name in wants and name not in left and taken + wants[name] <= room:
                taken += wants[name]
                left += (name,)
    others = sum(wants[name] for name in left if name != layout.prose)
    shown = {name: needs[name] for name in needs if name in left}
    if layout.prose in shown:
        shown[layout.prose] = min(needs[layout.prose], max(least, room - others - gap))
    return shown
