"""SPEC.md says what the code does: reasons, labels, limits, topics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wire import fields, labels, topics
from wire.batch import share_length
from wire.envelope import OVERHEAD_BYTES
from wire.proto import pointillist_pb2
from wire.rejection import Reason
from wire.report import HEAD_BYTES

SPEC = Path(labels.__file__).with_name("SPEC.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SPEC.splitlines()
    if line.startswith("| `")
]


def test_every_reason_has_one_row() -> None:
    section = SPEC[SPEC.index("## 9.") : SPEC.index("## 10.")]
    rows = re.findall(r"^\| `([a-z_0-9]+)` \| (.+?) \| (.+) \|$", section, re.MULTILINE)
    assert sorted(row[0] for row in rows) == sorted(reason.value for reason in Reason)
    assert all(party and when for _, party, when in rows)


def test_every_label_has_a_row() -> None:
    section = SPEC[SPEC.index("## 2.") : SPEC.index("## 3.")]
    written = {labels.label(text) for text in re.findall(r"`(plst1/[a-z-]+)`", section)}
    known = {value for name, value in vars(labels).items() if name.isupper()} - {16}
    assert known <= written
    assert written - known == {labels.label("plst1/catalogue")}
    assert len({len(value) for value in written}) == 1


@pytest.mark.parametrize("topic", topics.TOPICS, ids=lambda topic: topic.name)
def test_every_topic_has_a_row_with_its_limit(topic: topics.Topic) -> None:
    row = next(row for row in ROWS if row[0] == f"`{topic.name}`")
    assert row[1].split()[0] == str(topic.kind.value)
    assert row[3] == f"{topic.max_bytes - OVERHEAD_BYTES:,}"
    kept = "by time" if topic.name in topics.EXPIRING else "always"
    assert row[4] == ("last of a key" if topic.compacted else kept)


def test_limits_are_the_written_ones() -> None:
    assert (fields.MIN_D, fields.MAX_D, fields.MAX_HOSTS) == (3, 2**20, 2**20)
    assert (fields.MAX_TIME, fields.MAX_COUNTER) == (253_402_300_799, 2**53 - 1)
    limits = (
        fields.MAX_TASK_BODY,
        fields.MAX_ROSTER_BODY,
        fields.MAX_JOIN_BODY,
        fields.MAX_VOUCHER_BODY,
        fields.MAX_ENTRY_BODY,
    )
    assert "; ".join(f"{limit:,}" for limit in limits) in SPEC
    assert HEAD_BYTES + 16 == 144
    assert share_length(8, 3) == 52 + 1 + 12


def test_labels_refuse_what_does_not_fit() -> None:
    for text in ("", "plst1/seventeen-xx"):
        with pytest.raises(ValueError, match="1 to 16"):
            labels.label(text)


def test_every_call_of_the_direct_channel_is_written() -> None:
    services = pointillist_pb2.DESCRIPTOR.services_by_name
    section = SPEC[SPEC.index("## 7.") : SPEC.index("## 8.")]
    for service in services.values():
        assert service.full_name in section
        assert all(f"`{call.name}`" in section for call in service.methods)
