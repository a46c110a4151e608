"""Every message decodes to what was encoded."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from wire import labels
from wire.batch import ENTRY, AggregateShare, Batch, SignedBatch, SignedShare
from wire.envelope import Kind, Signed, unwrap, wrap
from wire.epoch import Epoch, EpochHeader
from wire.fields import (
    MAX_COUNTER,
    MAX_TIME,
    EpochId,
    HostId,
    KeyId,
    ReportId,
    Scheme,
    TaskId,
    VoucherId,
    host_id,
    voucher_id,
)
from wire.join import SEALED_JOIN_BYTES, JoinRequest, SealedJoin, Voucher, split_requests
from wire.proto import pointillist_pb2 as pb
from wire.rejection import Reason, ReportRejected
from wire.report import Report, ReportHeader, box_length
from wire.roster import PlanMembership, Roster, RosterEntry
from wire.task import SectionKind, SectionSpec, Task

TIMES = st.integers(0, MAX_TIME)
COUNTERS = st.integers(0, MAX_COUNTER)
NAMES = st.from_regex(r"\A[a-z0-9][a-z0-9._-]{0,20}\Z")


def _bytes(length: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=length, max_size=length)


def _reports() -> st.SearchStrategy[Report]:
    def build(d: int, scheme: Scheme, ids: bytes, tag: bytes, window: int, cohort: int) -> Report:
        return Report(
            HostId(ids[:16]),
            EpochId(ids[16:32]),
            TaskId(ids[32:64]),
            ReportHeader(cohort, d, window, ReportId(ids[64:])),
            tag if scheme is Scheme.MASKED else bytes(16),
            bytes(range(256))[: box_length(d, scheme)],
        )

    cohorts = st.integers(0, 2**32 - 1)
    schemes = st.sampled_from(Scheme)
    return st.builds(build, st.integers(3, 25), schemes, _bytes(80), _bytes(16), TIMES, cohorts)


@given(report=_reports())
@settings(deadline=None)
def test_report_round_trips(report: Report) -> None:
    decoded = Report.decode(report.encode())
    assert decoded == report
    assert decoded.aad == report.aad
    assert decoded.header_bytes == report.header.encode()


def test_replaced_report_keeps_no_bytes_of_the_old() -> None:
    """A forged copy of a received report must be built of its own fields."""
    old = Report.decode(
        Report(
            HostId(bytes(16)),
            EpochId(bytes(16)),
            TaskId(bytes(32)),
            ReportHeader(1, 3, 60, ReportId(bytes(16))),
            bytes(16),
            bytes(28),
        ).encode()
    )
    forged = dataclasses.replace(old, host_id=HostId(b"\1" * 16))
    assert Report.decode(forged.encode()).host_id == b"\1" * 16


@given(start=st.integers(0, MAX_TIME - 3900), length=st.integers(1, 3900), counter=COUNTERS)
@settings(deadline=None)
def test_epoch_round_trips(start: int, length: int, counter: int) -> None:
    header = EpochHeader(
        HostId(b"h" * 16),
        EpochId(b"e" * 16),
        start,
        start + length,
        KeyId(b"k" * 8),
        KeyId(b"l" * 8),
        counter,
        counter,
    )
    epoch = Epoch(header, b"s" * 1168, b"t" * 1168, b"g" * 64)
    assert Epoch.decode(epoch.encode()) == epoch
    assert epoch.hash() == dataclasses.replace(epoch, signature=bytes(64)).hash()


@given(hosts=st.sets(_bytes(16), min_size=1, max_size=20), window=TIMES, seed=st.integers(0, 99))
@settings(deadline=None)
def test_batch_round_trips(hosts: set[bytes], window: int, seed: int) -> None:
    entries = np.frombuffer(np.random.default_rng(seed).bytes(72 * len(hosts)), ENTRY).copy()
    entries["host_id"] = np.frombuffer(b"".join(sorted(hosts)), "V16")
    batch = SignedBatch(Batch(TaskId(b"t" * 32), 3, window, 7, entries), b"s" * 64)
    assert SignedBatch.decode(batch.encode()) == batch
    if len(hosts) > 1:
        falling = SignedBatch(Batch(TaskId(b"t" * 32), 3, window, 7, entries[::-1]))
        with pytest.raises(ReportRejected) as caught:
            SignedBatch.decode(falling.encode())
        assert caught.value.reason is Reason.ORDER


@given(
    accepted=st.lists(st.booleans(), min_size=1, max_size=40),
    vector=st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=9),
)
@settings(deadline=None)
def test_share_round_trips(accepted: list[bool], vector: list[int]) -> None:
    bits, words = np.array(accepted), np.array(vector, dtype=np.uint32)
    share = SignedShare(AggregateShare(b"b" * 32, bits, words), b"s" * 64)
    decoded = SignedShare.decode(share.encode(), len(bits), len(words))
    assert decoded == share
    assert decoded.share.n_accepted == sum(accepted)
    assert decoded.share.accepted.tolist() == accepted
    assert decoded.share.vector.tolist() == vector


@given(body=st.binary(max_size=200), kind=st.sampled_from(Kind))
@settings(deadline=None)
def test_envelope_and_signed_round_trip(body: bytes, kind: Kind) -> None:
    signed = Signed(labels.ROSTER, body, b"l" * 64, b"h" * 64)
    assert Signed.decode(signed.encode(), labels.ROSTER) == signed
    core = signed.encode()
    assert unwrap(wrap(kind, core), len(core) + 8) == (kind, core)


@given(
    head=st.binary(max_size=9),
    kind=st.integers(0, 12),
    core=st.binary(max_size=300),
    tail=st.sampled_from((b"", b"", b"\x18\x01", b"\x12\x00")),
    wrapped=st.booleans(),
)
@settings(deadline=None)
def test_envelope_is_taken_just_where_protobuf_would_write_it_so(
    head: bytes, kind: int, core: bytes, tail: bytes, wrapped: bool
) -> None:
    message = pb.Envelope(kind=kind, core=core)  # type: ignore[arg-type]  # numbers of no kind, too
    data = (message.SerializeToString() if wrapped else head + core) + tail
    try:
        parsed = pb.Envelope.FromString(data)
        canonical = parsed.core != b"" and int(parsed.kind) in [int(kind) for kind in Kind]
        parsed.DiscardUnknownFields()
        canonical = canonical and parsed.SerializeToString() == data
    except DecodeError:
        canonical = False
    if canonical:
        assert unwrap(data, len(data)) == (Kind(parsed.kind), parsed.core)
    else:
        with pytest.raises(ReportRejected) as refusal:
            unwrap(data, len(data))
        assert refusal.value.reason is Reason.ENVELOPE


def _sections() -> st.SearchStrategy[SectionSpec]:
    def build(kind: SectionKind, length: int, q: int, steps: int, extra: int) -> SectionSpec:
        indicators = kind is SectionKind.INDICATORS
        m = min(length, 3) if indicators else 0
        cap = q * steps
        bound = cap * m if indicators else cap + q * extra
        return SectionSpec(1, "one", kind, length, cap, bound, m, q, 10, 999, 4096)

    small = st.integers(1, 100)
    return st.builds(build, st.sampled_from(SectionKind), small, small, small, small)


@given(section=_sections(), series=NAMES, window_s=st.integers(1, 86_400), first=st.integers(0, 9))
@settings(deadline=None)
def test_task_round_trips(section: SectionSpec, series: str, window_s: int, first: int) -> None:
    task = Task(
        series=series,
        version=1,
        domain="demo",
        scheme=Scheme.LOCAL,
        first_window=first * window_s,
        last_window=(first + 23) * window_s,
        window_s=window_s,
        lateness_s=3,
        retention_s=60,
        sections=(section,),
        epsilon_millionths=2_000_000,
        delta_1e12=1000,
        mu_1e9=351_549_815,
        n_max=12,
        n_min=10,
        t=2,
        min_operators=0,
        leader_pk=b"l" * 32,
        helper_pk=b"",
        catalogue_hash=b"c" * 32,
        expiry=1,
    )
    assert Task.decode_body(task.encode_body()) == task
    assert task.windows == 24
    sigma = task.sigma_vector_1024()
    assert sigma.tolist() == [0, 0] + [4096] * section.length
    assert task.slices() == {"one": slice(2, task.d)}


@given(keys=st.sets(_bytes(32), max_size=8), operator=NAMES, gpus=st.integers(1, 1024))
@settings(deadline=None)
def test_roster_round_trips(keys: set[bytes], operator: str, gpus: int) -> None:
    entries = [
        RosterEntry(host_id(key), key, operator, 0, ((0, 1), (7, gpus)), key[:16], voucher_id(key))
        for key in keys
    ]
    plans = ((PlanMembership("minute", 1, 600_000), PlanMembership("week", 0, 400_000)),)
    ordered = tuple(sorted(entries, key=lambda entry: entry.host_id))
    roster = Roster(3, 600, plans, tuple(entries))
    assert Roster.decode_body(roster.encode_body()) == dataclasses.replace(roster, entries=ordered)


@given(
    parts=st.sets(_bytes(16), min_size=1, max_size=64),
    models=st.dictionaries(st.integers(0, 63), st.integers(1, 1024), max_size=64),
    operator=NAMES,
    not_after=TIMES,
)
@settings(deadline=None)
def test_join_request_round_trips(
    parts: set[bytes], models: dict[int, int], operator: str, not_after: int
) -> None:
    """The largest of them too fits what is sealed."""
    voucher = Voucher(b"l" * 32, b"t" * 32, operator, operator, not_after, b"v" * 64)
    gpus = tuple(sorted(models.items()))
    request = JoinRequest(b"p" * 32, b"".join(sorted(parts)), gpus, voucher, b"t" * 64, b"s" * 64)
    decoded = JoinRequest.from_padded(request.padded())
    assert decoded == request
    assert decoded.hash() == request.hash()
    assert list(split_requests(request.encode() * 3)) == [request] * 3
    sealed = SealedJoin(b"p" * 32, KeyId(b"k" * 8), bytes(SEALED_JOIN_BYTES - 56))
    assert SealedJoin.decode(sealed.encode()) == sealed


def test_roster_refuses_a_part_with_two_hosts_by_name() -> None:
    """In one roster every part of a machine, and every voucher, is with one host."""
    plan = ((PlanMembership("minute", 0, 1),),)
    keys = sorted((bytes([i]) * 32 for i in range(3)), key=host_id)
    own = [RosterEntry(host_id(k), k, "op", 0, (), k[:16], voucher_id(k)) for k in keys]
    shared = own[1].hardware_ids[0]
    for wrong in (
        dataclasses.replace(own[2], hardware=b"".join(sorted((shared, own[2].hardware)))),
        dataclasses.replace(own[2], voucher_id=own[1].voucher_id),
        dataclasses.replace(own[2], voucher_id=VoucherId(own[2].hardware)),
    ):
        body = Roster(1, 0, plan, (*own[:2], wrong)).encode_body()
        with pytest.raises(ReportRejected, match="once in a roster") as caught:
            Roster.decode_body(body)
        assert own[2].host_id.hex() in str(caught.value)
