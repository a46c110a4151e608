"""The witness process: whom it serves, and that nobody else's word passes for its own."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from aggregator.party.channel import start_server
from aggregator.party.channel_address import ChannelAddress
from aggregator.witness.backends import ProcessWitness
from aggregator.witness.chain import Witness, WitnessUnavailable
from aggregator.witness.service import WitnessBook, WitnessStore
from tests.aggregator.witness.witness_kit import (
    HELPER_KEYS,
    TIMEOUT_S,
    WITNESS_KEY,
    ProcessStand,
    extend,
    link_after,
)
from tests.certificate_kit import Authority
from tests.protocol_kit import altered, signing_key
from transport.rpc.pointillist_pb2_grpc import WitnessServicer, add_WitnessServicer_to_server
from wire.proto import pointillist_pb2 as pb
from wire.rejection import Reason, ReportRejected
from wire.witness import NO_LINKS, ChainHead, WitnessAsk, WitnessHead

Answer = Callable[[WitnessAsk], bytes]


class LyingWitness(WitnessServicer):
    """Answers every question by a function of the test's."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def Ask(self, request: pb.AskRequest, context: grpc.ServicerContext) -> pb.AskResponse:
        return pb.AskResponse(head=self._answer(WitnessAsk.decode(request.ask)))


@pytest.fixture
def answered_by(tmp_path: Path) -> Iterator[Callable[[Answer], Witness]]:
    """Makes a Helper's end whose witness answers as told."""
    address = ChannelAddress(socket=tmp_path / "w.sock", call_timeout_s=TIMEOUT_S)
    opened: list[Witness] = []
    servers: list[grpc.Server] = []

    def make(answer: Answer) -> Witness:
        service = LyingWitness(answer)
        servers.append(
            start_server(address, lambda server: add_WitnessServicer_to_server(service, server), "")
        )
        opened.append(ProcessWitness(address, WITNESS_KEY.public_bytes, HELPER_KEYS[0]))
        return opened[-1]

    yield make
    for witness in opened:
        witness.close()
    for server in servers:
        server.stop(0).wait()


def signed(ask: WitnessAsk, key: object = WITNESS_KEY, **changes: object) -> bytes:
    assert isinstance(key, type(WITNESS_KEY))
    head = WitnessHead(WITNESS_KEY.public_bytes, ask.helper_pk, ask.nonce, NO_LINKS)
    head = replace(head, **changes)  # type: ignore[arg-type]
    return head.unsigned() + key.sign(head.unsigned())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda ask: signed(ask, signing_key("nobody")), "pinned witness's signature"),
        (lambda ask: altered(signed(ask)), "pinned witness's signature"),
        (lambda ask: signed(ask, nonce=bytes(32)), "answer to this question"),
        (lambda ask: signed(ask, helper_pk=HELPER_KEYS[1].public_bytes), "to this question"),
        (lambda ask: signed(ask, witness_pk=bytes(32)), "answer to this question"),
        (lambda ask: signed(ask) + b"\0", "length: expected"),
        (lambda ask: signed(ask, head=ChainHead(2**60, bytes(32), 0)), "field: expected"),
        (lambda _: b"\xff" * 200, "length: expected"),
        (lambda _: b"", "length: expected"),
    ],
)
def test_word_that_is_not_the_witnesss_own_is_refused_and_said(
    answered_by: Callable[[Answer], Witness], answer: Answer, said: str
) -> None:
    witness = answered_by(answer)
    with pytest.raises(WitnessUnavailable, match=said):
        witness.head()


def test_witness_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        address = ChannelAddress(socket=path, call_timeout_s=0.5)
        witness = ProcessWitness(address, WITNESS_KEY.public_bytes, HELPER_KEYS[0])
        with pytest.raises(WitnessUnavailable, match="expected an answer"):
            witness.head()
        witness.close()


def test_only_helpers_that_are_served_are_answered(tmp_path: Path) -> None:
    store = WitnessStore(tmp_path / "w.sqlite")
    book = WitnessBook(WITNESS_KEY, [HELPER_KEYS[0].public_bytes], store)
    right = WitnessAsk(WITNESS_KEY.public_bytes, HELPER_KEYS[0].public_bytes, bytes(32), None)
    stranger = signing_key("nobody")
    for ask, key in (
        (right, stranger),
        (replace(right, helper_pk=stranger.public_bytes), stranger),
        (replace(right, witness_pk=bytes(32)), HELPER_KEYS[0]),
    ):
        with pytest.raises(ReportRejected) as refused:
            book.answer(ask.unsigned() + key.sign(ask.unsigned()))
        assert refused.value.reason is Reason.WITNESS_SIGNATURE
    with pytest.raises(ReportRejected):
        book.answer(b"\1" * 176)
    assert dict(book.refused) == {"witness_signature": 3, "version": 1}
    answer = book.answer(right.unsigned() + HELPER_KEYS[0].sign(right.unsigned()))
    assert WitnessHead.decode(answer).head == NO_LINKS
    store.close()


def test_refusal_of_the_witness_is_said(tmp_path: Path) -> None:
    stand = ProcessStand(tmp_path / "w")
    witness = stand.open(signing_key("nobody"))
    with pytest.raises(WitnessUnavailable, match="refusal: 'witness_signature'"):
        witness.head()
    witness.close()
    stand.end()


def test_witness_serves_over_mutual_tls_alone(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ca")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host_port = f"127.0.0.1:{free.getsockname()[1]}"
    listens = ChannelAddress(None, host_port, authority.issue("witness"))
    stand = ProcessStand(tmp_path / "w", listens)
    asks = ChannelAddress(None, host_port, authority.issue("helper"), call_timeout_s=10)
    witness = ProcessWitness(asks, WITNESS_KEY.public_bytes, HELPER_KEYS[0])
    assert extend(witness, 2).sequence == 2
    witness.close()
    assert asks.tls is not None
    other = Authority.make(tmp_path / "other").issue("helper")
    trusting = replace(asks, tls=replace(other, ca_file=asks.tls.ca_file), call_timeout_s=2)
    stranger = ProcessWitness(trusting, WITNESS_KEY.public_bytes, HELPER_KEYS[0])
    with pytest.raises(WitnessUnavailable):
        stranger.head()
    stranger.close()
    stand.end()


def test_chain_is_kept_by_one_writer_at_a_time(tmp_path: Path) -> None:
    """Two processes on one file, by a mistake of the operator: still one chain."""
    stores = [WitnessStore(tmp_path / "w.sqlite") for _ in range(2)]
    start = threading.Barrier(2)

    def fill(store: WitnessStore) -> int:
        start.wait()
        taken = 0
        for number in range(20):
            link = link_after(store.head(HELPER_KEYS[0].public_bytes), (id(store), number))
            taken += store.append(link) == link.head()
        return taken

    with ThreadPoolExecutor(2) as pool:
        taken = sum(pool.map(fill, stores))
    assert stores[0].head(HELPER_KEYS[0].public_bytes).sequence == taken
    for store in stores:
        store.close()
    shutil.rmtree(tmp_path)
