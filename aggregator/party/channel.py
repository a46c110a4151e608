"""The direct channel between Leader and Helper: gRPC over a Unix socket or mutual TLS.

What it carries has signatures of its own: the channel is the second lock. Messages are bounded,
calls have deadlines, and the Helper works on one at a time. A witness is reached the same way.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, TypeVar

import grpc

from aggregator.protocol.interfaces import (
    BatchReply,
    HelperPort,
    HelperStatus,
    HelperUnavailable,
    ReleaseReply,
)
from transport.files.keyfiles import KeyFileRefused
from transport.files.private_files import set_folder
from transport.process.listening import why_not
from transport.process.privileges import user_name, way_to_own
from transport.rpc.pointillist_pb2_grpc import (
    HelperServicer,
    HelperStub,
    add_HelperServicer_to_server,
)
from wire.proto import pointillist_pb2 as pb

from .channel_address import ChannelAddress

SOCKET_MODE: Final = 0o2750
SOCKET_UMASK: Final = 0o007
MAX_SECRET_BYTES: Final = 1 << 16
STATUS_TIMEOUT_S: Final = 10.0
"""Asking whether it is there must not hold the next batch up."""

_CONCURRENT_CALLS: Final = 4
CONNECTIONS: Final = 256
"""A party has one to another; who has no certificate is among them
until its handshake is over, and must not take the descriptors that the party's files need."""
HANDSHAKE_S: Final = 10

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")


class ChannelHelper:
    def __init__(self, address: ChannelAddress) -> None:
        """Connect lazily; a Helper that is away shows in the first call.

        Raises      KeyFileRefused, OSError
        """
        self._timeout_s = address.call_timeout_s
        self._channel = open_channel(address)
        self._stub = HelperStub(self._channel)

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        self._call(self._stub.SubmitBatch, pb.SubmitBatchRequest(epochs=epochs))

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        request = pb.SubmitBatchRequest(batch=signed_batch, epochs_complete=epochs_complete)
        reply = self._call(self._stub.SubmitBatch, request)
        return BatchReply(
            reply.share, reply.refusal, tuple(reply.need_epochs.epochs), dict(reply.cleared)
        )

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        request = pb.SubmitReleaseRequest(release=entry, vector=vector)
        reply = self._call(self._stub.SubmitRelease, request)
        return ReleaseReply(reply.release, reply.refusal)

    def status(self) -> HelperStatus:
        reply = self._call(self._stub.Status, pb.StatusRequest(), STATUS_TIMEOUT_S)
        return HelperStatus(
            reply.version,
            reply.helper_pk,
            reply.clock,
            reply.roster_version,
            reply.batches_answered,
            dict(reply.refused),
            tuple(reply.key_announcements),
            reply.takes_salt,
        )

    def _call(
        self,
        method: grpc.UnaryUnaryMultiCallable[_Request, _Reply],
        request: _Request,
        most_s: float = math.inf,
    ) -> _Reply:
        try:
            return method(request, timeout=min(self._timeout_s, most_s))
        except grpc.RpcError as error:
            raise HelperUnavailable(f"expected an answer of the Helper, got {error!r}") from error

    def close(self) -> None:
        self._channel.close()


class _Service(HelperServicer):
    """Translates messages; an error that is no refusal goes to `failed` and is not answered."""

    def __init__(
        self,
        port: HelperPort,
        failed: Callable[[BaseException], bool],
        lock: AbstractContextManager[object],
    ) -> None:
        self._port, self._failed, self._lock = port, failed, lock

    def SubmitBatch(
        self, request: pb.SubmitBatchRequest, context: grpc.ServicerContext
    ) -> pb.SubmitBatchResponse:
        return self._guard(context, lambda: self._batch(request))

    def _batch(self, request: pb.SubmitBatchRequest) -> pb.SubmitBatchResponse:
        if request.epochs:
            self._port.submit_epochs(list(request.epochs))
        if not request.batch:
            return pb.SubmitBatchResponse()
        reply = self._port.submit_batch(request.batch, epochs_complete=request.epochs_complete)
        response = pb.SubmitBatchResponse(cleared=reply.cleared)
        if reply.share:
            response.share = reply.share
        elif reply.need_epochs:
            response.need_epochs.epochs.extend(reply.need_epochs)
        else:
            response.refusal = reply.refusal
        return response

    def SubmitRelease(
        self, request: pb.SubmitReleaseRequest, context: grpc.ServicerContext
    ) -> pb.SubmitReleaseResponse:
        def answer() -> pb.SubmitReleaseResponse:
            reply = self._port.submit_release(request.release, request.vector)
            if reply.entry:
                return pb.SubmitReleaseResponse(release=reply.entry)
            return pb.SubmitReleaseResponse(refusal=reply.refusal)

        return self._guard(context, answer)

    def Status(
        self,
        request: pb.StatusRequest,  # noqa: ARG002  (it asks nothing)
        context: grpc.ServicerContext,
    ) -> pb.StatusResponse:
        def answer() -> pb.StatusResponse:
            status = self._port.status()
            return pb.StatusResponse(
                version=status.version,
                helper_pk=status.helper_pk,
                clock=status.clock_s,
                roster_version=status.roster_version,
                batches_answered=status.batches_answered,
                refused=status.refused,
                key_announcements=status.key_announcements,
                takes_salt=status.takes_salt,
            )

        return self._guard(context, answer)

    def _guard(self, context: grpc.ServicerContext, answer: Callable[[], _Reply]) -> _Reply:
        try:
            with self._lock:
                return answer()
        except Exception as error:  # a fence, a full disk, a bug: fail closed, say nothing of it
            ends = self._failed(error)
            why = "the Helper stops" if ends else "the Helper cannot answer now"
            context.abort(grpc.StatusCode.UNAVAILABLE, why)
            raise


def serve(
    port: HelperPort,
    address: ChannelAddress,
    failed: Callable[[BaseException], bool],
    lock: AbstractContextManager[object],
) -> grpc.Server:
    """Start serving; the caller stops it.

    failed      called with what ended a call; says whether the Helper must end with it
    lock        held while a call is answered
    Raises      KeyFileRefused, AddressUnavailable, OSError
    """
    service = _Service(port, failed, lock)
    choose = "address of [listen] in helper.toml, and then of [helper] in leader.toml"
    return start_server(
        address, lambda server: add_HelperServicer_to_server(service, server), choose
    )


def open_channel(address: ChannelAddress) -> grpc.Channel:
    """Make the calling end of a channel, which connects when it is used.

    Raises      KeyFileRefused, OSError
    """
    options = _bounds(address.max_message_bytes)
    if address.tls is None:
        return grpc.insecure_channel(_target(address), options=options)
    tls = address.tls
    credentials = grpc.ssl_channel_credentials(
        tls.ca_file.read_bytes(), read_private(tls.key_file), tls.cert_file.read_bytes()
    )
    return grpc.secure_channel(_target(address), credentials, options=options)


def start_server(
    address: ChannelAddress,
    add_service: Callable[[grpc.Server], None],
    choose: str,
    *,
    calls: int = _CONCURRENT_CALLS,
) -> grpc.Server:
    """Serve at an address, one call at a time; the caller stops it.

    choose      what picks another address
    calls       that may wait for their turn
    Raises      KeyFileRefused, AddressUnavailable, OSError
    """
    if address.tls is not None:
        host, _, port = address.host_port.rpartition(":")
        # gRPC says that it failed, and not why; and what it began by then outlives the failure.
        if refused := why_not(host.strip("[]"), int(port), choose):
            raise refused
    server = grpc.server(
        ThreadPoolExecutor(max_workers=1, thread_name_prefix="channel"),
        options=[
            *_bounds(address.max_message_bytes),
            ("grpc.max_allowed_incoming_connections", CONNECTIONS),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
        ],
        maximum_concurrent_rpcs=calls,
    )
    add_service(server)
    if address.tls is None:
        if address.socket is None:
            raise ValueError("address: expected a socket or TLS files, got neither")
        address.socket.unlink(missing_ok=True)
        before = os.umask(SOCKET_UMASK)
        try:
            server.add_insecure_port(_target(address))
        finally:
            os.umask(before)
    else:
        pair = (read_private(address.tls.key_file), address.tls.cert_file.read_bytes())
        ca = address.tls.ca_file.read_bytes()
        credentials = grpc.ssl_server_credentials([pair], ca, require_client_auth=True)
        server.add_secure_port(_target(address), credentials)
    server.start()
    return server


def prepare_socket_folder(socket: Path, owner: str | None, peer_group: str | None) -> None:
    """Make the socket's folder so that only who listens and the group of who calls can reach it.

    owner, peer_group   given when root prepares it before dropping to the listening party's user
    """
    folder = socket.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = SOCKET_MODE if peer_group is not None else 0o700
    set_folder(folder, mode, owner, None if owner is None else peer_group)


def code_of(error: grpc.RpcError) -> str:
    """Name what went wrong: the library's own text may quote what the other side sent."""
    code = getattr(error, "code", None)
    return str(code().name) if callable(code) else type(error).__name__


def read_private(path: Path) -> bytes:
    """Read a secret that is the process's own and nobody else's to read.

    Raises      KeyFileRefused, OSError
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        mode = stat.S_IMODE(status.st_mode)
        expected = f"{path}: expected a file of {user_name(os.geteuid())}, 0600"
        if status.st_uid != os.geteuid():
            raise KeyFileRefused(
                f"{expected}, got one of {user_name(status.st_uid)}; "
                f"{way_to_own(path, status.st_uid, os.geteuid())}"
            )
        if not stat.S_ISREG(status.st_mode) or mode & ~0o600:
            raise KeyFileRefused(f"{expected}, got mode {mode:04o}; chmod 600 {path}")
        return file.read(MAX_SECRET_BYTES)


def _target(address: ChannelAddress) -> str:
    return f"unix:{address.socket}" if address.socket is not None else address.host_port


def _bounds(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5_000),
    ]
