"""The table of signals, and that what makes frames keeps to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.ebpf import ebpf_tables as layout
from diagnosis.frames.host_signals import FAULT_KINDS
from diagnosis.frames.signals import (
    FINE,
    MOST_FINE,
    SIGNALS,
    Scope,
    SignalTableError,
    load_signals,
    of_scope,
)

_GOOD = (
    'scopes = ["host"]\ngroup = "scheduler"\nhurts = "up"\nabout = "x"\nsaid = "it was {value}"\n'
)


def test_signals_columns_are_those_that_the_kernel_programs_count() -> None:
    columns = {*layout.CGROUP_COLUMNS, *layout.BLOCK_CGROUP_COLUMNS}
    for signal in SIGNALS.values():
        assert not signal.total or signal.total in layout.TOTALS, signal.name
        assert not signal.column or signal.column in columns, signal.name
        assert not signal.minus or signal.minus in columns | set(layout.TOTALS), signal.name


def test_signals_fine_are_few_and_of_the_host() -> None:
    assert 0 < len(FINE) <= MOST_FINE
    assert set(FINE) <= set(of_scope(SIGNALS, Scope.HOST))


def test_signals_have_faults_of_every_kind() -> None:
    assert {f"faults_{kind}_per_s" for kind in FAULT_KINDS} <= set(of_scope(SIGNALS, Scope.HOST))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at least one signal"),
        ("[x", "signals.toml"),
        (f"[Cpu_ms]\n{_GOOD}", "a name of a-z"),
        (f"[cpu]\n{_GOOD}", "ends in one of"),
        ("cpu_ms = 3", "cpu_ms: expected a table without a name, got 3"),
        (f"[cpu_ms]\n{_GOOD}color = 1", "cpu_ms.color: unknown key"),
        ("[cpu_ms]\nscopes = ['host']", "cpu_ms.group: expected text in quotes, got nothing"),
        (
            f"[cpu_ms]\n{_GOOD}".replace("host", "rack"),
            r"scopes\[0\]: expected one of host, subject, ",
        ),
        (
            f"[cpu_ms]\n{_GOOD}".replace('"up"', '"left"'),
            "one of up, down, either, got .left",
        ),
        (f"[cpu_ms]\n{_GOOD}".replace('"x"', "3"), "about: expected text in quotes, got 3"),
        (f"[cpu_ms]\n{_GOOD}".replace("{value}", "{0}"), r"cpu_ms\.said: expected text like"),
        (f"[cpu_ms]\n{_GOOD}floors = {{ gpu = 1 }}", "floors: expected scopes of its own, got gpu"),
        (f"[cpu_ms]\n{_GOOD}floors = {{ rack = 1 }}", r"cpu_ms\.floors\.rack: unknown key"),
        (f"[cpu_ms]\n{_GOOD}fine = 1", "fine: expected true or false, got 1"),
        (f"[cpu_ms]\n{_GOOD}fine = true", "a fine signal to be the host's, with a total"),
        (
            "".join(f'[a{n}_ms]\n{_GOOD}total = "x"\nfine = true\n' for n in range(25)),
            "at most 24 fine signals, got 25",
        ),
    ],
)
def test_signal_table_that_does_not_fit_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "signals.toml"
    path.write_text(text)
    with pytest.raises(SignalTableError, match=words):
        load_signals(path)
