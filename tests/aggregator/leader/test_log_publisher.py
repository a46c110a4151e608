"""What the Leader gives to the log in its Helper's name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aggregator.leader.log_publisher import MOST_KEYS, LogPublisher
from aggregator.protocol.directory import PinnedParties
from privacy.signing import SigningKey
from transport.embedded.embedded import EmbeddedLog
from wire.envelope import unwrap
from wire.epoch import KeyAnnouncement
from wire.topics import KEYS

HELPER = SigningKey.generate()
PARTIES = PinnedParties(SigningKey.generate().public_bytes, HELPER.public_bytes)


def announced(number: int, signing: SigningKey = HELPER) -> bytes:
    hpke_pk = number.to_bytes(1216, "big")
    draft = KeyAnnouncement(signing.public_bytes, hpke_pk, 0, 60)
    return replace(draft, signature=signing.sign(draft.unsigned())).encode()


def on_the_log(folder: Path, announcements: list[bytes]) -> set[bytes]:
    with EmbeddedLog(folder) as log:
        publisher = LogPublisher(log, PARTIES)
        publisher.open()
        publisher.put_keys(announcements)
        publisher.flush()
        consumer = log.consumer("reader-1", [KEYS])
        found = {unwrap(record.value, 2_000)[1] for record in consumer.poll(1_000, 0.0)}
        consumer.close()
        publisher.close()
    return found


def test_keys_that_no_pinned_party_signed_are_left_out(tmp_path: Path) -> None:
    good = announced(1)
    forged = good[:-1] + bytes([good[-1] ^ 1])
    assert on_the_log(tmp_path, [b"", forged, announced(2, SigningKey.generate()), good]) == {good}


def test_helper_fills_the_log_with_no_more_keys_than_a_party_has(tmp_path: Path) -> None:
    many = [announced(number) for number in range(100)]
    assert on_the_log(tmp_path, many) == set(many[:MOST_KEYS])
