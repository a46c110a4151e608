"""A witness that is a process of its own: it answers signed questions with signed heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

import grpc

from aggregator.party.channel import start_server
from aggregator.party.channel_address import ChannelAddress
from privacy.signing import SigningKey, verify
from transport.rpc.pointillist_pb2_grpc import WitnessServicer, add_WitnessServicer_to_server
from wire.proto import pointillist_pb2 as pb
from wire.rejection import Reason, ReportRejected
from wire.witness import WitnessAsk, WitnessHead

from .witness_store import WitnessStore


class WitnessBook:
    """Checks who asks, keeps the chains, signs heads."""

    def __init__(
        self, identity: SigningKey, helpers: Collection[bytes], store: WitnessStore
    ) -> None:
        """Serve the Helpers of these identity keys alone."""
        self._identity, self._helpers, self._store = identity, frozenset(helpers), store
        self.refused: Counter[str] = Counter()
        self.asked = 0

    def answer(self, raw: bytes) -> bytes:
        """Carry a question out and give the signed head.

        Raises      ReportRejected, which is counted; StorageUnavailable
        """
        try:
            ask = self._admit(raw)
        except ReportRejected as refusal:
            self.refused[refusal.reason.value] += 1
            raise
        self.asked += 1
        store = self._store
        head = store.head(ask.helper_pk) if ask.link is None else store.append(ask.link)
        draft = WitnessHead(self._identity.public_bytes, ask.helper_pk, ask.nonce, head)
        return draft.unsigned() + self._identity.sign(draft.unsigned())

    def _admit(self, raw: bytes) -> WitnessAsk:
        ask = WitnessAsk.decode(raw)
        if ask.witness_pk != self._identity.public_bytes or ask.helper_pk not in self._helpers:
            raise ReportRejected(
                Reason.WITNESS_SIGNATURE, "this witness and a Helper that it serves", "others"
            )
        if not verify(ask.helper_pk, ask.unsigned(), ask.signature):
            raise ReportRejected(Reason.WITNESS_SIGNATURE, "the Helper's signature", "another")
        return ask


class _Asked(WitnessServicer):
    def __init__(
        self,
        book: WitnessBook,
        failed: Callable[[BaseException], None],
        lock: AbstractContextManager[object],
    ) -> None:
        self._book, self._failed, self._lock = book, failed, lock

    def Ask(self, request: pb.AskRequest, context: grpc.ServicerContext) -> pb.AskResponse:
        try:
            with self._lock:
                return pb.AskResponse(head=self._book.answer(request.ask))
        except ReportRejected as refusal:
            return pb.AskResponse(refusal=refusal.reason.value)
        except Exception as error:  # a full disk, a bug: fail closed, say nothing of it
            self._failed(error)
            context.abort(grpc.StatusCode.UNAVAILABLE, "the witness cannot answer now")
            raise


def serve_witness(
    book: WitnessBook,
    address: ChannelAddress,
    failed: Callable[[BaseException], None],
    lock: AbstractContextManager[object],
) -> grpc.Server:
    """Start serving; the caller stops it.

    failed      called with what ended a call, but a refusal
    lock        held while a question is answered
    Raises      KeyFileRefused, OSError
    """
    service = _Asked(book, failed, lock)
    choose = "address of [listen] in witness.toml, and then of [witness.process] in helper.toml"
    return start_server(
        address, lambda server: add_WitnessServicer_to_server(service, server), choose
    )
