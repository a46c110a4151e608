"""Every kept input of the fuzzers, and every seed, is read as it should be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.targets import NAMES, Target, load

MOST_BYTES = 96 << 10
"""Of one target's corpus: it lies in the repository."""


@pytest.fixture(params=NAMES)
def target(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Target]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    found = load(request.param)
    yield found
    found.close()


def test_fuzz_inputs_that_are_kept_break_no_parser(target: Target) -> None:
    kept = sorted(target.corpus.iterdir())
    assert kept, f"make fuzz ARGS=--keep writes {target.corpus}"
    for file in kept:
        target.fuzz(file.read_bytes())
    for seed in target.seeds():
        target.fuzz(seed)


def test_fuzz_corpus_is_small(target: Target) -> None:
    files = list(target.corpus.iterdir())
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    assert all(file.name.startswith(("found-", "crash-")) for file in files)
