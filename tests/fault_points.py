"""A plugin of pytest: a test marked `fault_case` must reach the code where its case says.

What a process said before it was killed is noted by whoever ended it; what happens in the test's
own process is watched. `POINTILLIST_FAULTS=DIR` keeps a file of each test's outcome for
bench/scale_faults.py.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest

from tests.fault_cases import CASES, FaultCase, case
from tests.fault_notes import Watch, watches
from tests.leftovers import say

FOLDER: Final = "POINTILLIST_FAULTS"
_RAISES, _OF, _RETURNS = " raises ", " of ", " returns "


_reached: dict[str, set[str]] = defaultdict(set)
_failed: set[str] = set()
_missing: list[str] = []


def cases_of(item: pytest.Item) -> list[FaultCase]:
    return [case(str(mark.args[0])) for mark in item.iter_markers("fault_case")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch the points of a test's cases; fail where one of its cases was reached nowhere."""
    cases = cases_of(item)
    if not cases:
        return (yield)
    with watched(point for one in cases for point in one.points) as watch:
        passed = False
        try:
            result = yield
            for one in cases:
                if not watch.reached & set(one.points):
                    expected = ", ".join(one.points)
                    pytest.fail(f"{one.name}: expected one of {expected} to be reached")
            passed = True
        finally:
            _keep(item, cases, watch, passed=passed)
    return result


def _keep(item: pytest.Item, cases: Iterable[FaultCase], watch: Watch, *, passed: bool) -> None:
    for one in cases:
        _reached[one.name] |= watch.reached if passed else set()
        if not passed:
            _failed.add(one.name)
    folder = os.environ.get(FOLDER)
    if folder:
        name = hashlib.sha256(item.nodeid.encode()).hexdigest()[:16]
        outcome = {
            "test": item.nodeid,
            "cases": [one.name for one in cases],
            "passed": passed,
            **{name: value for name, value in vars(watch).items() if name != "reached"},
            "reached": sorted(watch.reached),
        }
        (Path(folder) / f"{name}.json").write_text(json.dumps(outcome))


def unreached() -> Iterator[str]:
    for one in CASES:
        missing = set(one.points) - _reached[one.name]
        if missing:
            yield f"{one.name}: {', '.join(sorted(missing))}"


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Where all cases were asked for, each point of each was reached."""
    yield
    asked = session.config.option
    worker = getattr(session.config, "workeroutput", None)
    if worker is not None:
        worker[FOLDER] = {name: sorted(points) for name, points in _reached.items()}
        return
    whole = session.config.args_source is pytest.Config.ArgsSource.TESTPATHS and not asked.keyword
    if whole and "fault_case" in asked.markexpr and not asked.collectonly:
        _missing.extend(unreached())
        if _missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    say(terminalreporter, "NOT REACHED", _missing)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for name, points in getattr(node, "workeroutput", {}).get(FOLDER, {}).items():
        _reached[name].update(points)


@contextmanager
def watched(points: Iterable[str]) -> Iterator[Watch]:
    watch = Watch()
    with ExitStack() as stack:
        for place in {_place(point) for point in points if "@" not in point}:
            stack.enter_context(_wrapped(place, points_at(place), watch))
        watches.append(watch)
        try:
            yield watch
        finally:
            watches.remove(watch)


def points_at(place: str) -> list[str]:
    every = {point for one in CASES for point in one.points if "@" not in point}
    return sorted(point for point in every if _place(point) == place)


def _place(point: str) -> str:
    return point.partition(" ")[0]


def find(place: str) -> tuple[Any, str]:
    """Give the owner of `module:Class.function`, and the function's name in it.

    Raises      ImportError, AttributeError
    """
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, import_module(module))
    getattr(owner, name)
    return owner, name


def _wrapped(place: str, points: list[str], watch: Watch) -> Any:
    owner, name = find(place)
    inner: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(inner)
    def wrapper(*given: Any, **named: Any) -> Any:
        words = {value for value in (*given, *named.values()) if isinstance(value, str)}
        watch.reached |= {p for p in points if p == place or p.partition(_OF)[2] in words}
        try:
            answer = inner(*given, **named)
        except Exception as error:
            kinds = {kind.__name__ for kind in type(error).__mro__}
            watch.reached |= {p for p in points if p.partition(_RAISES)[2] in kinds}
            raise
        watch.reached |= {p for p in points if p.partition(_RETURNS)[2] == str(answer)}
        return answer

    return mock.patch.object(owner, name, wrapper)
