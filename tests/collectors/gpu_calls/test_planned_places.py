"""Where every planned symbol of the real driver, runtimes and NCCL is probed, beside a table."""

from __future__ import annotations

from collections import Counter

import pytest

from collectors.binaries.elf_file import EntryClass
from collectors.binaries.probe_offset import FARTHEST
from tests.places_kit import LIBRARIES, committed, places


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_planned_symbol_is_probed_where_the_table_says(name: str) -> None:
    """`python -m tests.places_kit` writes the table anew."""
    expected = [line._replace(why="") for line in committed() if line.library == name]
    assert places(name, LIBRARIES[name]()) == expected


def test_table_names_a_reason_for_every_symbol_that_stays_dear() -> None:
    dear = [line for line in committed() if line.place == EntryClass.STEPPED]
    assert {line.symbols for line in dear} == {"ncclBcast=pncclBcast"}
    for line in committed():
        assert bool(line.why) == (line in dear), line
        assert 0 <= int(line.behind) <= FARTHEST, line


def test_table_probes_returns_wherever_a_result_is_read() -> None:
    assert {line.returns for line in committed()} == {"yes"}


def test_table_has_every_library_with_as_many_places_as_it_has() -> None:
    found: Counter[str] = Counter()
    for line in committed():
        found[line.library] += len(line.symbols.split())
    assert found == {
        "libcuda.so.1": 149, "libcudart.so.12": 104, "libcudart.so.13": 108, "libnccl.so.2": 110,
    }  # fmt: skip
