"""What workers and coordinator say: each word once, bounded, under the pinned authority alone."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.party.channel_address import ChannelAddress
from aggregator.party.party_config import load_leader_config
from aggregator.protocol.answers import BatchKey
from aggregator.workers import workers_pb2 as pb
from aggregator.workers.codec import (
    BadMessage,
    decode_orders,
    decode_word,
    encode_order,
    encode_word,
    parse_request,
)
from aggregator.workers.desk import LAPSE_S, MOST_WORDS, Desk, Heard, WordVerdict
from aggregator.workers.words import (
    Claim,
    EpochUnknown,
    Frozen,
    Granted,
    NamedHosts,
    OpenedEpoch,
    Order,
    PartitionSum,
    Rebuild,
    Refusals,
    SignedRoster,
    SignedTask,
    SumWanted,
    Superseded,
    WindowEnded,
    Word,
)
from aggregator.workers.worker_channel import CoordinatorChannel, serve_workers
from aggregator.workers.worker_port import CoordinatorUnavailable
from pointillist.cli.leader_command import run
from pointillist.cli.output import CommandError
from tests.integration.test_channel_tls import Authority
from transport.settings.config_tree import ConfigError
from wire.bounds import MAX_TIME

KEY = BatchKey(b"t" * 32, 3, 1_700_000_040)
CLAIM = Claim(2, b"c" * 16)
WORD = Word(
    [CLAIM],
    7,
    [1.5, 2.5],
    [NamedHosts(KEY, CLAIM, b"e" * 144, None), NamedHosts(KEY, CLAIM, b"", 9.0)],
    [Refusals(KEY, CLAIM, {"duplicate": 2})],
    {"box": 1},
    [b"w" * 32, b"x" * 32],
    [b"d" * 32],
    [PartitionSum(KEY, CLAIM, 2, b"v" * 24)],
)
EPOCH = OpenedEpoch(b"h" * 16, b"e" * 16, b"x" * 32, 10, 20, 3, False, b"k" * 32)
ORDERS: list[Order] = [
    SignedTask(b"task"),
    SignedRoster(b"roster"),
    EPOCH,
    replace(EPOCH, dead=True, key=None),
    EpochUnknown(b"n" * 32),
    Rebuild(KEY, 2, b"r" * 64),
    Granted(CLAIM),
    Superseded(CLAIM),
    Frozen(KEY),
    SumWanted(KEY, CLAIM, b"h" * 32),
    WindowEnded(KEY, 1_800_000_000),
]
SESSION = "5e" * 16


def test_words_and_orders_come_over_as_they_were_said() -> None:
    assert decode_word(encode_word(WORD)) == WORD
    assert decode_word(encode_word(replace(WORD, lag=None))).lag is None
    assert decode_orders(map(encode_order, ORDERS)) == ORDERS


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda w: w.claims[0].ClearField("number"), "claim"),
        (lambda w: setattr(w.named[0], "entries", b"e" * 71), "entries"),
        (lambda w: setattr(w.named[0].key, "task_id", b"t"), "task_id"),
        (lambda w: setattr(w.named[0].key, "window", 1 << 50), "window"),
        (lambda w: setattr(w, "wanted", b"w" * 33), "wanted"),
        (lambda w: setattr(w.named[0], "late_s", math.nan), "late_s"),
        (lambda w: setattr(w.named[0], "late_s", math.inf), "late_s"),
        (lambda w: w.appended_s.append(math.inf), "appended_s"),
    ],
)
def test_word_of_another_shape_is_refused(spoil: Callable[[pb.Word], object], named: str) -> None:
    message = encode_word(WORD)
    spoil(message)
    with pytest.raises(BadMessage, match=named):
        decode_word(message)


def test_word_is_said_to_whichever_coordinator_answers(tmp_path: Path) -> None:
    desk = Desk(lambda: 0.0)
    first, second = (ChannelAddress(tmp_path / name, call_timeout_s=5) for name in "ab")
    server = serve_workers(desk, second)
    channel = CoordinatorChannel(first, [second])
    try:
        with pytest.raises(CoordinatorUnavailable):
            channel.exchange(SESSION, 1, WORD)
        assert channel.exchange(SESSION, 1, WORD).verdict is WordVerdict.TAKEN
        assert channel.exchange(SESSION, 2, WORD).verdict is WordVerdict.TAKEN
    finally:
        channel.close()
        server.stop(None).wait()
    assert [heard.word for heard in desk.take()] == [None, WORD, WORD]


def test_answer_of_other_bytes_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = CoordinatorChannel(ChannelAddress(tmp_path / "a", call_timeout_s=5))
    monkeypatch.setattr(channel, "_call", lambda *_, **__: b"\xff\xff")
    with pytest.raises(CoordinatorUnavailable, match="got other bytes"):
        channel.exchange(SESSION, 1, WORD)
    channel.close()


def test_order_of_another_release_is_refused() -> None:
    with pytest.raises(BadMessage, match="another"):
        decode_orders([pb.Order()])
    short = encode_order(EPOCH)
    short.epoch.key = b"short"
    with pytest.raises(BadMessage, match="key: expected 32 bytes, got 5"):
        decode_orders([short])
    with pytest.raises(BadMessage):
        parse_request(b"\xff\xff")


def test_word_said_again_is_taken_once_and_answered_alike() -> None:
    desk = Desk(lambda: 0.0)
    desk.exchange(SESSION, 1, Word())
    desk.put(SESSION, [Frozen(KEY)])
    first = desk.exchange(SESSION, 2, WORD)
    assert desk.exchange(SESSION, 2, WORD) == first
    assert first.orders == [Frozen(KEY)]
    words = [heard.word for heard in desk.take()]
    assert words == [None, Word(), WORD]  # the first is that it joined


def test_desk_that_is_full_takes_nothing_and_loses_nothing() -> None:
    desk = Desk(lambda: 0.0)
    for number in range(1, MOST_WORDS):
        assert desk.exchange(SESSION, number, Word()).verdict is WordVerdict.TAKEN
    assert desk.exchange(SESSION, MOST_WORDS, WORD).verdict is WordVerdict.BUSY
    assert len(desk.take()) == MOST_WORDS
    assert desk.exchange(SESSION, MOST_WORDS, WORD).verdict is WordVerdict.TAKEN


def test_session_that_is_silent_or_skips_a_word_is_over() -> None:
    now_s = 0.0
    desk = Desk(lambda: now_s)
    desk.exchange(SESSION, 1, Word())
    assert desk.exchange(SESSION, 3, Word()).verdict is WordVerdict.UNKNOWN
    assert desk.take()[-1] == Heard(SESSION)
    assert desk.exchange(SESSION, 4, Word()).verdict is WordVerdict.UNKNOWN
    desk.exchange(SESSION, 1, Word())
    now_s = LAPSE_S + 1
    assert desk.take()[-1] == Heard(SESSION)


def test_channel_asks_both_ends_for_a_certificate(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "workers")
    stranger = Authority.make(tmp_path / "other")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    desk = Desk(lambda: 0.0)
    address = ChannelAddress(host_port=place, tls=authority.issue("leader"), call_timeout_s=10)
    server = serve_workers(desk, address)
    try:
        worker = CoordinatorChannel(replace(address, tls=authority.issue("worker")))
        assert worker.exchange(SESSION, 1, Word()).verdict is WordVerdict.TAKEN
        desk.put(SESSION, ORDERS)
        assert worker.exchange(SESSION, 2, WORD).orders == ORDERS
        assert [heard.word for heard in desk.take()][1:] == [decode_word(pb.Word(lag=0)), WORD]
        worker.close()
        files = replace(stranger.issue("worker"), ca_file=authority.folder / "ca.pem")
        other = CoordinatorChannel(replace(address, tls=files, call_timeout_s=2))
        with pytest.raises(CoordinatorUnavailable):
            other.exchange(SESSION, 3, Word())
        other.close()
    finally:
        server.stop(None).wait()


def test_times_of_a_log_that_lies_keep_no_word_back() -> None:
    word = decode_word(encode_word(Word(appended_s=[-0.001, 9.3e15, 1.5])))
    assert word.appended_s == [0.0, MAX_TIME, 1.5]


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("", "socket"),
        ('address = "h:1"', "ca_file"),
        ('socket = "/run/w"\nleader_pk = "00"', "leader_pk"),
        ('socket = "/run/w"\nworkers = 4', "workers"),
    ],
)
def test_table_of_workers_names_what_is_wrong(table: str, named: str, tmp_path: Path) -> None:
    sample = Path(__file__).resolve().parents[2] / "deploy" / "config" / "leader.toml"
    path = tmp_path / "leader.toml"
    path.write_text(f"{sample.read_text()}\n[workers]\n{table}\n")
    with pytest.raises(ConfigError, match=named):
        load_leader_config(path)


def test_machine_of_workers_alone_names_the_leader(tmp_path: Path) -> None:
    sample = Path(__file__).resolve().parents[2] / "deploy" / "config" / "leader.toml"
    path = tmp_path / "leader.toml"
    path.write_text(
        f'{sample.read_text()}\n[workers]\nsocket = "/run/w"\nleader_pk = "{"ab" * 32}"\n'
    )
    workers = load_leader_config(path).workers
    assert workers is not None
    assert (workers.leader_pk, workers.address.socket) == (b"\xab" * 32, Path("/run/w"))


@pytest.mark.parametrize(
    ("table", "workers", "named"),
    [
        ("", "0", "at least 1"),
        (f'[workers]\nsocket = "/run/w"\nleader_pk = "{"ab" * 32}"', "0", "leader_pk"),
    ],
)
def test_leader_without_any_reader_is_wrong_usage(
    table: str, workers: str, named: str, tmp_path: Path
) -> None:
    sample = Path(__file__).resolve().parents[2] / "deploy" / "config" / "leader.toml"
    path = tmp_path / "leader.toml"
    path.write_text(f"{sample.read_text()}\n{table}\n")
    with pytest.raises(CommandError, match=named):
        run(path, int(workers))
