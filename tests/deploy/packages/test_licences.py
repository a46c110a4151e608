"""The page of licences lists what the packages install, in the versions that are locked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.licences import PAGE, UNSAID, licence_of, page

LOCKS = Path(__file__).resolve().parents[3] / "requirements"
PIN = re.compile(r"^([a-z0-9.-]+)(?:\[[^\]]*\])?==(\S+)(.*)$", re.MULTILINE)


def pinned(lock: str) -> dict[str, set[str]]:
    """Give the versions of each package that a lock file installs on Linux."""
    found: dict[str, set[str]] = {}
    for name, version, condition in PIN.findall((LOCKS / f"{lock}.txt").read_text("utf-8")):
        if "win32" not in condition:
            found.setdefault(name, set()).add(version)
    return found


@pytest.mark.parametrize(("lock", "program"), [("agent", "agent"), ("parties", "aggregators")])
def test_licences_page_lists_what_a_package_installs(lock: str, program: str) -> None:
    cells = [line.split("|") for line in PAGE.read_text("utf-8").splitlines() if "|" in line][2:]
    listed = {
        name.replace("_", "-"): version
        for row in cells
        if row[2].strip() in {"both", program}
        for name, version in (package.split() for package in row[3].split(","))
    }
    wanted = pinned(lock)
    assert listed.keys() == wanted.keys(), "make sbom"
    assert [name for name, version in listed.items() if version not in wanted[name]] == []


@pytest.mark.parametrize(
    ("licences", "said"),
    [
        ([{"expression": "MIT OR Apache-2.0"}], "MIT OR Apache-2.0"),
        ([{"license": {"id": "MIT"}}, {"license": {"name": "License :: OSI :: MIT"}}], "MIT"),
        ([{"license": {"name": "License :: OSI Approved :: BSD License"}}], "BSD License"),
        ([], UNSAID),
    ],
)
def test_licence_of_a_component(licences: list[dict[str, object]], said: str) -> None:
    assert licence_of({"licenses": licences}) == said


def test_package_of_both_lists_has_one_row() -> None:
    component = {"name": "Some_Thing", "version": "1", "licenses": []}
    rows = page([[component], [component, {**component, "name": "other"}]]).splitlines()[-2:]
    assert rows == [
        f"| {UNSAID} | aggregators | other 1 |",
        f"| {UNSAID} | both | some_thing 1 |",
    ]
