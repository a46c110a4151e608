"""Open a witness that a configuration names: a process of its own, or a database."""

from __future__ import annotations

import os
from collections.abc import Sequence

import grpc

from aggregator.party.channel import code_of, open_channel
from aggregator.party.channel_address import ChannelAddress
from aggregator.party.config import WitnessSettings
from aggregator.party.postgresql_settings import PostgresqlSettings
from privacy.signing import SigningKey, verify
from transport.rpc.pointillist_pb2_grpc import WitnessStub
from wire.proto import pointillist_pb2 as pb
from wire.rejection import Reason, ReportRejected
from wire.witness import NONCE_BYTES, ChainHead, ChainLink, WitnessAsk, WitnessHead

from .chain import Witness, WitnessUnavailable


class ProcessWitness:
    """One Helper's chain at a witness process."""

    def __init__(self, address: ChannelAddress, witness_pk: bytes, identity: SigningKey) -> None:
        """Connect lazily; `identity` is the Helper's. Raises KeyFileRefused, OSError."""
        self._witness_pk, self._identity = witness_pk, identity
        self._timeout_s = address.call_timeout_s
        self._where = f"witness {address.socket or address.host_port}"
        self._channel = open_channel(address)
        self._stub = WitnessStub(self._channel)

    def head(self) -> ChainHead:
        return self._ask(None)

    def append(self, link: ChainLink) -> ChainHead:
        return self._ask(link)

    def close(self) -> None:
        self._channel.close()

    def _ask(self, link: ChainLink | None) -> ChainHead:
        nonce = os.urandom(NONCE_BYTES)
        draft = WitnessAsk(self._witness_pk, self._identity.public_bytes, nonce, link)
        raw = draft.unsigned() + self._identity.sign(draft.unsigned())
        try:
            reply = self._stub.Ask(pb.AskRequest(ask=raw), timeout=self._timeout_s)
        except grpc.RpcError as error:
            got = f"expected an answer, got {code_of(error)}"
            raise WitnessUnavailable(f"{self._where}: {got}") from error
        if reply.refusal:
            got = f"expected a signed head, got a refusal: {reply.refusal[:40]!r}"
            raise WitnessUnavailable(f"{self._where}: {got}")
        try:
            signed = WitnessHead.decode(reply.head)
        except ReportRejected as refusal:
            raise WitnessUnavailable(f"{self._where}: {refusal}") from refusal
        if not verify(self._witness_pk, signed.unsigned(), signed.signature):
            raise self._refusal("the pinned witness's signature", "another")
        asked = (self._witness_pk, self._identity.public_bytes, nonce)
        if (signed.witness_pk, signed.helper_pk, signed.nonce) != asked:
            raise self._refusal("an answer to this question", "another's")
        return signed.head

    def _refusal(self, expected: str, got: str) -> WitnessUnavailable:
        refused = ReportRejected(Reason.WITNESS_SIGNATURE, expected, got)
        return WitnessUnavailable(f"{self._where}: {refused}")


def open_witness(settings: WitnessSettings, identity: SigningKey) -> Witness:
    """Make the Helper's end; it connects when it is asked first.

    Raises      WitnessUnavailable where its library is not installed; KeyFileRefused, OSError
    """
    if isinstance(settings.witness, PostgresqlSettings):
        try:
            from .postgresql import PostgresqlWitness
        except ImportError as error:
            raise WitnessUnavailable(
                "[witness.postgresql]: expected the package psycopg, found none; install "
                "pointillist[witness-postgresql]"
            ) from error
        return PostgresqlWitness(settings.witness, identity.public_bytes, settings.timeout_s)
    return ProcessWitness(settings.witness.address, settings.witness.witness_pk, identity)


def kinds_of_witnesses(settings: Sequence[WitnessSettings]) -> str:
    kinds = (
        "postgresql" if isinstance(one.witness, PostgresqlSettings) else "process"
        for one in settings
    )
    return ", ".join(kinds) or "none"
