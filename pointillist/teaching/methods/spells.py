"""From scores of seconds to spikes: the same persistence for every simple method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pointillist.teaching.account import Said, Spell
from pointillist.teaching.tracks import NS, Track

OF_LAST: Final = (2, 3)
"""So many seconds above the limit, of so many: the shipped detector's persistence."""
CALM_S: Final = 5


def spells_of(track: Track, above: NDArray[np.bool_], say: Callable[[int], Said]) -> list[Spell]:
    """Join seconds above a limit to spikes; in a second below it the last word stands.

    above   bool[n]
    say     the cause as the method sees it in a second, by its number
    """
    needed, of = OF_LAST
    spells: list[Spell] = []
    said: list[Said] = []
    onset = known = quiet = 0
    for number in range(above.size):
        quiet = 0 if above[number] else quiet + 1
        recent = above[max(0, number - of + 1) : number + 1]
        if not said and recent.sum() >= needed:
            first = max(0, number - of + 1) + int(np.argmax(recent))
            onset, known = int(track.at_ns[first] - NS), int(track.at_ns[number])
        if above[number] and (said or recent.sum() >= needed):
            said.append(say(number))
        if said and quiet >= CALM_S:
            spells.append(Spell(track.subject, onset, known, int(track.at_ns[number]), tuple(said)))
            said = []
    if said:
        spells.append(Spell(track.subject, onset, known, None, tuple(said)))
    return spells
