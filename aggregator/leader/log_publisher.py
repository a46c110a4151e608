"""What the Leader gives to the log: tasks, rosters and answers, sealing keys, final releases."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from aggregator.protocol.directory import PinnedParties
from aggregator.protocol.interfaces import Checkpoint
from privacy.signing import verify
from transport.interface import (
    LogNote,
    Producer,
    RecordTooLarge,
    Transport,
    create_topics,
    made_anew,
)
from wire import labels, topics
from wire.envelope import Kind, Signed, wrap
from wire.epoch import KeyAnnouncement
from wire.rejection import Reason, ReportRejected
from wire.roster import EntryAnswer
from wire.task import Task

from .intake import DeadLetters
from .leader_state import LeaderState

PUBLISHED_AT_ONCE: Final = 500
MOST_KEYS: Final = 16
"""Of one answer, beside those of later versions: two or three are in force or soon to be."""


class LogPublisher:
    """Hands things to the log, each once a process; what an outage holds up waits here."""

    def __init__(
        self, transport: Transport, parties: PinnedParties, *, letters: bool = False
    ) -> None:
        self._letters = letters
        self._transport, self._parties = transport, parties
        self._producer: Producer | None = None
        self._known: dict[bytes, tuple[str, bytes, bytes]] = {}
        self._logs: dict[str, str] = {}
        self._waiting: deque[tuple[str, bytes, bytes]] = deque()
        self._left_out: set[Reason] = set()

    def open(self) -> None:
        """Make the topics and the producer. Raises TransportUnavailable."""
        self.make_topics()
        self._producer = self._transport.producer()

    def make_topics(self) -> None:
        """Make those that are missing; one may have been deleted. Raises TransportUnavailable."""
        create_topics(self._transport)
        if self._letters:
            self._transport.create_topic(topics.DEAD_LETTERS, 1)

    def close(self) -> None:
        """Flush and let go. Raises TransportUnavailable."""
        if self._producer is not None:
            self._producer.close()

    def _put(self, topic: str, key: bytes, kind: Kind, core: bytes) -> None:
        if core not in self._known:
            self._known[core] = (topic, key, wrap(kind, core))
            self._waiting.append(self._known[core])

    def put_again(self) -> list[LogNote]:
        """Put what topics held that were made anew. Raises TransportUnavailable."""
        notes = []
        for topic in sorted({topic for topic, _key, _value in self._known.values()}):
            now = self._transport.identity(topic)
            before = self._logs.setdefault(topic, now)
            if now and now != before:
                self._logs[topic] = now
                self._waiting.extend(one for one in self._known.values() if one[0] == topic)
                notes.append(made_anew(topic, before, now))
        return notes

    def put_keys(self, announcements: Iterable[bytes]) -> list[ReportRejected]:
        """Publish sealing keys that their party signed; what else the Helper says is left out.

        Returns     why, of each reason the first: a Helper of a later version offers its keys, too
        """
        parties = {self._parties.leader_pk, self._parties.helper_pk}
        keys, left_out = list[tuple[KeyAnnouncement, bytes]](), list[ReportRejected]()
        for raw in announcements:
            try:
                keys.append((KeyAnnouncement.decode(raw), raw))
            except ReportRejected as refusal:
                if refusal.reason not in self._left_out:
                    left_out.append(refusal)
                self._left_out.add(refusal.reason)
        for key, raw in keys[:MOST_KEYS]:
            if key.party_pk not in parties or not verify(
                key.party_pk, key.unsigned(), key.signature
            ):
                continue
            self._put(
                topics.KEYS,
                topics.announcement_key(key.party_pk, key.key_id),
                Kind.KEY_ANNOUNCEMENT,
                raw,
            )
        return left_out

    def put_task(self, content: bytes) -> None:
        series = Task.decode_body(Signed.decode(content, labels.TASK).body).series
        self._put(topics.TASKS, topics.task_key(series), Kind.TASK, content)

    def put_roster(self, content: bytes) -> None:
        self._put(topics.ROSTERS, topics.roster_key(), Kind.ROSTER, content)

    def put_entry(self, content: bytes) -> None:
        """Answer a join request, once both parties have signed the answer.

        Raises      ReportRejected: roster_signature
        """
        signed = Signed.decode(content, labels.ENTRY_ANSWER)
        parties, message = self._parties, signed.unsigned()
        if not verify(parties.leader_pk, message, signed.sig_leader) or not verify(
            parties.helper_pk, message, signed.sig_helper
        ):
            raise ReportRejected(Reason.ROSTER_SIGNATURE, "both parties' signatures", "others")
        host_pk = EntryAnswer.decode_body(signed.body).entry.ed25519_pk
        self._put(topics.ENTRIES, topics.join_key(host_pk), Kind.ENTRY_ANSWER, content)

    def put_letters(self, letters: DeadLetters) -> None:
        """Publish letters about refused messages; while others wait, they wait where they are."""
        if not self._waiting:
            self._waiting.extend((topics.DEAD_LETTERS, b"", letter) for letter in letters.take())

    def flush(self) -> None:
        """Make everything that was put durable on the log.

        Raises      TransportUnavailable: the rest waits for the next call; RecordTooLarge for what
                    the log will never take, which is let go
        """
        if self._producer is None:
            return
        while self._waiting:
            try:
                self._producer.send(*self._waiting[0])
            except RecordTooLarge:
                self._waiting.popleft()
                raise
            self._waiting.popleft()
        self._producer.flush()

    def publish_releases(self, state: LeaderState, checkpoint: Checkpoint) -> None:
        """Give the log what the transcript holds: at least once each, in the order of a chain.

        Raises      TransportUnavailable
        """
        final = state.to_publish(PUBLISHED_AT_ONCE)
        if not final or self._producer is None:
            return
        for release in final:
            key = topics.release_key(release.series, release.cohort)
            self._producer.send(topics.RELEASES, key, wrap(Kind.RELEASE, release.entry))
        self._producer.flush()
        checkpoint("between log and published")
        state.published(final[-1])
