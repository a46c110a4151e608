"""Commands and options of before: refused by name, with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from .output import usage_error

_NO_MODEL: Final = "there are no learned models: the hand rules were right more often, and speak"
FORMER: Final[Mapping[str, str]] = {
    "agent diagnose --model": _NO_MODEL,
    "diagnosis train": f"{_NO_MODEL}; `diagnosis evaluate` judges them",
    "diagnosis evaluate --model": _NO_MODEL,
    "diagnosis evaluate --rules": "leave it out: the hand rules are what is judged",
    "diagnosis evaluate --ablate": "leave it out: groups of signals are not judged apart",
    "diagnosis groups --model": _NO_MODEL,
}
"""Group, command and perhaps an option -> advice."""


def refuse_former(group: str, words: Sequence[str]) -> None:
    """Refuse what a group's command line names and no version has any more. Raises CommandError."""
    for name, advice in FORMER.items():
        whose, command, *option = name.split()
        if whose == group and words[:1] == [command] and (not option or _has(words, option[0])):
            raise usage_error(f"{name} is gone", advice)


def _has(words: Sequence[str], option: str) -> bool:
    return any(word.partition("=")[0] == option for word in words)
