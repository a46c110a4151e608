"""The journal's lines: what is written is read back, and nothing else is taken."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from diagnosis.detect.journal import (
    MAX_LINE_BYTES,
    JournalLine,
    JournalLineError,
    JournalReader,
    Series,
    SignalSeries,
    decode,
    encode,
)
from tests.diagnosis.causes.findings_kit import EVIDENCE, diagnosis, one_of_each

OFFSET_NS = 1_792_000_000_000_000_000


def test_every_finding_is_read_back_as_it_was() -> None:
    for finding in one_of_each():
        line = encode(finding, OFFSET_NS)
        assert b"\n" not in line
        assert decode(line) == JournalLine(OFFSET_NS, finding)


def test_names_that_are_no_text_survive() -> None:
    odd = replace(diagnosis(), subject="/train/\udcff\n", group="größer")
    assert decode(encode(odd, 0)).finding == odd


def test_line_of_an_older_agent_is_read_without_the_fields_that_it_did_not_know() -> None:
    record = json.loads(encode(diagnosis(), OFFSET_NS))
    for one in record["finding"]["evidence"]:
        del one["scope"]
    del record["finding"]["group"]
    assert decode(json.dumps(record).encode()).finding == diagnosis()


def test_finding_past_the_readers_bounds_is_not_written() -> None:
    for wrong in (
        replace(diagnosis(), evidence=(EVIDENCE,) * 65),
        replace(diagnosis(), confidence=float("nan")),
    ):
        with pytest.raises(ValueError, match=r"expected|JSON"):
            encode(wrong, OFFSET_NS)


def changed(**changes: Any) -> bytes:
    record = json.loads(encode(diagnosis(), OFFSET_NS))
    record["finding"] |= {k: v for k, v in changes.items() if k in record["finding"]}
    record |= {k: v for k, v in changes.items() if k not in record["finding"]}
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"", "JSON"),
        (b"[]", "keys"),
        (b"[" * 50_000, "JSON"),
        (b" " * (MAX_LINE_BYTES + 1), "bytes"),
        (changed(format=2), "format 1, got 2"),
        (changed(format=True), "format 1"),
        (changed(kind="deed"), "kind"),
        (changed(kind=["warned"]), "kind"),
        (changed(kind="warned"), "still give, got warned"),
        (changed(offset_ns=1 << 63), "64 bits"),
        (changed(more=1), "keys"),
        (changed(cause="weather"), r"diagnosis\.cause"),
        (changed(at_ns=1.5), r"at_ns: expected a whole"),
        (changed(at_ns=True), r"at_ns: expected a whole"),
        (changed(confidence="high"), r"confidence: expected a finite"),
        (changed(confidence=10**400), r"confidence: expected a finite"),
        (changed(confidence=1e308), r"confidence: expected a finite"),
        (changed(incident=1), r"incident: expected true"),
        (changed(ranked=[["unknown"]]), r"ranked: expected 2 values"),
        (changed(evidence=[{}] * 65), r"evidence: expected a list"),
        (changed(evidence=[1]), r"evidence: expected the fields"),
        (changed(subject="x" * 5_000), r"subject: expected a text"),
        (changed(now=None), r"now: expected the fields"),
    ],
)
def test_line_that_no_agent_wrote_is_refused(line: bytes, what: str) -> None:
    with pytest.raises(JournalLineError, match=what):
        decode(line)


@pytest.mark.parametrize("short", ["p50_ms", "longest_ms", "signals"])
def test_picture_has_one_value_a_second(short: str) -> None:
    signal = SignalSeries("own", "block_write_ms", (1.0, 2.0))
    whole = Series("/train", 1, (-1.0, 0.0), (1.0, None), (2.0, 3.0), (signal,))
    assert decode(encode(whole, OFFSET_NS)).finding == whole
    record = json.loads(encode(whole, OFFSET_NS))
    cut = record["finding"][short]
    (cut if short != "signals" else cut[0]["values"]).pop()
    with pytest.raises(JournalLineError, match="one a second, got 1"):
        decode(json.dumps(record).encode())


EARLY_WARNING = (
    b'{"format":1,"kind":"warned","offset_ns":1792000000000000000,"finding":{"subject":"/train/rank0",'
    b'"at_ns":95000000000,"evidence":[],"expected_in_s":31.5,"before":null,"now":null}}'
)
"""As agents wrote them once."""


def test_reader_passes_over_early_warnings_of_older_agents_and_counts_no_damage() -> None:
    reader = JournalReader()
    (line,) = reader.read([EARLY_WARNING, encode(diagnosis(), OFFSET_NS), EARLY_WARNING])
    assert line.finding == diagnosis()
    assert reader.damaged == 0


def test_reader_leaves_out_what_a_crash_cut_off_and_counts_it() -> None:
    whole = encode(diagnosis(), OFFSET_NS)
    reader = JournalReader()
    lines = list(reader.read([whole + b"\n", b"\n", whole[:100], whole]))
    assert [line.finding for line in lines] == [diagnosis()] * 2
    assert reader.damaged == 1
