"""What a doctor finds: what is there, how that is, and the one thing to do about it.

Checks look, or try and take back: nothing is left created or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .file_rights import way_in
from .printable import printable

LONGEST: Final = 400


class CheckVerdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    ABSENT = "absent"
    """Something is not there; the program runs without it."""
    UNMEASURED = "unmeasured"
    """A signed task asks for this, and nothing here measures it: zeros would be reported."""
    BROKEN = "broken"
    """The program does not run, or does nothing, until this is put right."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's answer: what is there, and the one thing to do, if any."""

    group: str
    name: str
    verdict: CheckVerdict
    found: str
    do: str | None = None


Check = Callable[[], Finding]


def examine(
    checks: Iterable[tuple[str, str, Check]], *failures: type[Exception]
) -> Iterator[Finding]:
    """Run checks of (group, name); one that fails itself is a finding, not the end.

    failures    how a check may fail beside OSError, ValueError and RuntimeError
    """
    known: tuple[type[Exception], ...] = (OSError, ValueError, RuntimeError, *failures)
    for group, name, check in checks:
        try:
            yield check()
        except PermissionError as error:
            line = f"{printable(str(error.filename))} cannot be read by this user"
            yield Finding(group, name, CheckVerdict.BROKEN, line, way_in(error))
        except known as error:
            line = printable(str(error))[:LONGEST] or type(error).__name__
            yield Finding(group, name, CheckVerdict.BROKEN, line, f"look at {name} and try again")


def named(findings: Iterable[Finding], verdict: CheckVerdict) -> str:
    """Name what came out so, for the last line of an answer that may be longer than a screen."""
    return ", ".join(f.name for f in findings if f.verdict is verdict)


def worst(findings: Iterable[Finding]) -> CheckVerdict:
    """Give the worst verdict."""
    found = {finding.verdict for finding in findings}
    order = (CheckVerdict.BROKEN, CheckVerdict.UNMEASURED, CheckVerdict.ABSENT)
    return next((verdict for verdict in order if verdict in found), CheckVerdict.OK)
