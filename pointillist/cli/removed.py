"""Commands and options that are gone: each is refused by its name, with what to do instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .output import CommandError, usage_error

_NO_MODEL: Final = "leave it out: the hand rules speak, no learned model was right as often"
REMOVED: Final = {
    "agent diagnose --model": _NO_MODEL,
    "diagnosis train": "`diagnosis evaluate` judges the hand rules; no learned model was as good",
    "diagnosis evaluate --model": _NO_MODEL,
    "diagnosis evaluate --rules": "leave it out: the hand rules are what is judged",
    "diagnosis evaluate --ablate": "leave it out: groups of signals are not judged apart",
    "diagnosis groups --model": _NO_MODEL,
    "helper run --workers": "leave it out: one process answers for a million GPUs",
    "leader run --workers": "leave it out: one process carries a million GPUs; beyond that, "
    "--engine spark",
    "leader run --engine processes": "leave it out: this process reads; beyond a million GPUs, "
    "--engine spark",
}
"""The words of a command line -> what to do; a value stands after its option."""


def removed(words: Sequence[str]) -> CommandError | None:
    """Give the refusal of a command line that asks for what is gone, None for any other.

    words       as they were typed, the program's name apart
    """
    given = [part for word in words for part in word.split("=", maxsplit=1)]
    for gone, advice in REMOVED.items():
        command, dashes, option = gone.partition(" --")
        named = command.split()
        if given[: len(named)] == named and set((dashes + option).split()) <= set(given):
            return usage_error(f"{gone}: there is no such thing any more", advice)
    return None
