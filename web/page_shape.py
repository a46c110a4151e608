"""Pages as data: a new page is one module with a `PAGE` of it, and its name in `page_list`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
import pandas as pd
from markupsafe import Markup

from pages.trend_chart import TrendLine
from pages.wording import Number, Unit

from .store_reading import PageState, StoreReading


class Role(StrEnum):
    """Who looks; LOCAL is whoever sits at this machine, where no token is asked for."""

    LOCAL = "local"
    ANALYST = "analyst"
    OPERATOR = "operator"
    AUDITOR = "auditor"


EVERYBODY: Final = frozenset(Role)
NUMBERS: Final = frozenset({Role.LOCAL, Role.ANALYST, Role.OPERATOR})
"""Who reads what the fleet does; an auditor sees how it is kept private, and no mix."""


@dataclass(frozen=True, slots=True)
class FrameColumn:
    """A column of a view's frame, as its table and the API's description have it.

    name      in the API, and in the frame where it is no number with an error
    unit      of a number with an error; text: the frame's column that names each row's unit; None:
              text, time or a count, as it stands
    prefix    of a number's columns in the frame: value, standard_error, low, high, told, reason
              and coverage
    signed    a difference
    number    a count or another number without an error
    say       how a table writes its text
    """

    name: str
    head: str
    meaning: str
    unit: Unit | str | None = None
    prefix: str = ""
    signed: bool = False
    number: bool = False
    say: Callable[[str], str] = str

    def units(self, frame: pd.DataFrame) -> list[Unit]:
        if isinstance(self.unit, str):
            return [Unit(name, suffix=f" {name}") for name in frame[self.unit]]
        return [self.unit] * len(frame) if self.unit else []


@dataclass(frozen=True, slots=True)
class View:
    """One picture of a page.

    name       in addresses and anchors
    frame      what it shows: rows of `columns`, from the released numbers and the page's state
    words      one or two sentences on what is seen, from the frame
    chart      the drawing; without one the table is shown at once
    note       how it was made, shown where a number is pointed at
    empty      what is said where the frame has no row
    ways       lines over time by the name in the table's first column, drawn in a last column
    ways_head  the head of that column
    action     a button below it on the page: its text, and the address that it asks for
    """

    name: str
    title: str
    frame: Callable[[StoreReading, PageState], pd.DataFrame]
    columns: Sequence[FrameColumn]
    words: Callable[[pd.DataFrame], str]
    chart: Callable[[pd.DataFrame], Markup] | None = None
    note: Callable[[pd.DataFrame], str] | None = None
    empty: str = "Nothing was released for this yet."
    ways: Callable[[StoreReading, PageState], Sequence[TrendLine]] | None = None
    ways_head: str = "Over time"
    action: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A control: a name of `PageState`, and its values with texts; dates: first and last."""

    name: str
    label: str
    options: Callable[[StoreReading, PageState], Sequence[tuple[str, str]]]
    dates: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the application; `question` is what it answers, in one sentence."""

    name: str
    title: str
    question: str
    views: Sequence[View]
    choices: Sequence[Choice] = ()
    roles: frozenset[Role] = field(default=NUMBERS)

    def view(self, name: str) -> View | None:
        return next((view for view in self.views if view.name == name), None)


def numbers_of(frame: pd.DataFrame, prefix: str = "") -> list[Number]:
    """Read the numbers with errors of a frame's rows; what is missing is None."""
    parts = [
        _floats(frame, f"{prefix}{name}")
        for name in ("value", "standard_error", "low", "high", "coverage")
    ]
    told = list(frame.get(f"{prefix}told", [True] * len(frame)))
    reasons = [
        reason if isinstance(reason, str) and reason else None
        for reason in frame.get(f"{prefix}reason", [None] * len(frame))
    ]
    return [
        Number(value, error, low, high, bool(is_told), reason, coverage)
        for value, error, low, high, coverage, is_told, reason in zip(
            *parts, told, reasons, strict=True
        )
    ]


def _floats(frame: pd.DataFrame, name: str) -> list[float | None]:
    if name not in frame:
        return [None] * len(frame)
    numbers = frame[name].to_numpy(np.float64, na_value=np.nan).tolist()
    return [number if math.isfinite(number) else None for number in numbers]


def _series(reading: StoreReading, _: PageState) -> list[tuple[str, str]]:
    names = reading.names()
    return [("", "of most hosts"), *((name, name) for name in names)] if len(names) > 1 else []


def _cohorts(reading: StoreReading, state: PageState) -> list[tuple[str, str]]:
    numbers = reading.cohorts(state)
    said = [(str(number), str(number)) for number in numbers]
    return [("", "all together"), *said] if len(numbers) > 1 else []


def _days(reading: StoreReading, _: PageState) -> list[tuple[str, str]]:
    return [(f"{day:%Y-%m-%d}", "") for day in reading.days()]


_SPANS: Final = (
    ("auto", "newest"), ("hour", "1 hour"), ("day", "1 day"), ("week", "1 week"),
    ("eight_weeks", "8 weeks"), ("year", "1 year"),
)  # fmt: skip
_MEASURES: Final = (("gpu_time", "GPU time"), ("launch_share", "launches"))
_CHOICES: Final = {
    "span": Choice("span", "Span", lambda *_: _SPANS),
    "until": Choice("until", "Before", _days, dates=True),
    "measure": Choice("measure", "By", lambda *_: _MEASURES),
    "series": Choice("series", "Series", _series),
    "cohort": Choice("cohort", "Cohort", _cohorts),
}


def choices(*names: str) -> tuple[Choice, ...]:
    """Give the controls that several pages have, by names of `PageState`."""
    return tuple(_CHOICES[name] for name in names)
