"""The channel between workers and their coordinator: gRPC over a Unix socket or mutual TLS."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import grpc

from aggregator.party.channel import code_of, open_channel, start_server
from aggregator.party.channel_address import ChannelAddress

from . import workers_pb2 as pb
from .codec import (
    BadMessage,
    decode_orders,
    decode_word,
    encode_order,
    encode_word,
    parse_request,
    parse_response,
)
from .desk import Desk, Reply, WordVerdict
from .words import CLAIM_BYTES, Word
from .worker_port import CoordinatorUnavailable

_SERVICE: Final = "pointillist.workers.v1.Workers"
_METHOD: Final = "Exchange"
MOST_CALLS: Final = 256
"""Calls at once: more workers than partitions stand idle, and none waits within a call."""

_VERDICTS: Final = {
    WordVerdict.TAKEN: pb.VERDICT_TAKEN,
    WordVerdict.BUSY: pb.VERDICT_BUSY,
    WordVerdict.UNKNOWN: pb.VERDICT_UNKNOWN,
}
_NUMBERS: Final = {number: verdict for verdict, number in _VERDICTS.items()}


class CoordinatorChannel:
    """A worker's end: a `CoordinatorPort` across the channel, to whichever coordinator answers."""

    def __init__(self, address: ChannelAddress, others: Sequence[ChannelAddress] = ()) -> None:
        """Connect lazily.

        others      where coordinators of other machines listen, once they lead
        Raises      KeyFileRefused, OSError
        """
        self._addresses = deque((address, *others))
        self._connect()

    def _connect(self) -> None:
        self._timeout_s = self._addresses[0].call_timeout_s
        self._channel = open_channel(self._addresses[0])
        self._call: Callable[..., bytes] = self._channel.unary_unary(f"/{_SERVICE}/{_METHOD}")

    def exchange(self, worker: str, sequence: int, word: Word) -> Reply:
        """Say a word; when it is not answered the next goes to another coordinator, if any."""
        session = bytes.fromhex(worker)
        request = pb.ExchangeRequest(session=session, sequence=sequence, word=encode_word(word))
        try:
            raw = self._call(request.SerializeToString(), timeout=self._timeout_s)
            response = parse_response(raw)
            verdict = _NUMBERS.get(response.verdict)
            if verdict is None:
                raise BadMessage(f"verdict: expected 1..3, got {response.verdict}")
            return Reply(verdict, decode_orders(response.orders))
        except grpc.RpcError as error:
            self._turn_away()
            raise CoordinatorUnavailable(f"expected an answer, got {code_of(error)}") from error
        except BadMessage as error:
            raise CoordinatorUnavailable(str(error)) from error

    def _turn_away(self) -> None:
        if len(self._addresses) > 1:
            self._channel.close()
            self._addresses.rotate(-1)
            self._connect()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def serve_workers(desk: Desk, address: ChannelAddress) -> grpc.Server:
    """Start to take words; the caller stops it.

    Raises      KeyFileRefused, OSError
    """

    def exchange(raw: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            request = parse_request(raw)
            if len(request.session) != CLAIM_BYTES:
                raise BadMessage(f"session: expected 16 bytes, got {len(request.session)}")
            word = decode_word(request.word)
        except BadMessage as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        reply = desk.exchange(request.session.hex(), request.sequence, word)
        orders = map(encode_order, reply.orders)
        response = pb.ExchangeResponse(verdict=_VERDICTS[reply.verdict], orders=orders)
        return response.SerializeToString()

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(exchange)
    service = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler})
    return start_server(
        address,
        lambda server: server.add_generic_rpc_handlers((service,)),
        "address of [workers] in leader.toml, on every machine of this Leader",
        calls=MOST_CALLS,
    )
