"""A signal as a sentence: what a person reads in place of its name.

The sentence goes on with what is usual: "its threads waited 4.2 s/s for a CPU, usually 80 ms/s".
"""

from __future__ import annotations

from typing import Final

from diagnosis.frames.signals import SIGNALS

_WHOSE: Final = {
    "own": "its", "host": "the host's", "other": "other groups'", "gpu": "its GPU's",
}  # fmt: skip


def sentence(scope: str, signal: str, value: str) -> str:
    """Say one signal; one of a later version that has no sentence is said by its name."""
    whose = _WHOSE.get(scope, "the")
    if signal not in SIGNALS:
        return f"{whose} {signal} was {value}"
    return SIGNALS[signal].said.format(whose=whose, value=value)


def title(scope: str, signal: str) -> str:
    """Say a signal without a value, as above a plot: "its threads waited ... for a CPU"."""
    return sentence(scope, signal, "…")
