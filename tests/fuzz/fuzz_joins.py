"""Join requests, sealed and open, one or many, and the tokens that they begin with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.fuzz.fuzz_wire import need_reason, vectors
from transport.files.private_files import TokenUnusable, parse_token
from wire.join import JoinRequest, SealedJoin, split_requests
from wire.rejection import ReportRejected

_WAYS: Final = 5


def fuzz(data: bytes) -> None:
    """Read a request as one of the ways that one comes by, named by the first byte."""
    if not data:
        return
    content, way = data[1:], data[0] % _WAYS
    try:
        _read(way, content)
    except ReportRejected as rejected:
        need_reason(rejected)
    except TokenUnusable as refused:
        if len(content) >= 16 and content.decode("latin-1")[6:] in str(refused):
            raise AssertionError("a refusal quotes the token") from refused


def _read(way: int, content: bytes) -> None:
    if way == 0:
        assert JoinRequest.decode(content).encode() == content
    elif way == 1:
        assert SealedJoin.decode(content).encode() == content
    elif way == 2:
        assert JoinRequest.from_padded(content).padded() == content
    elif way == 3:
        assert b"".join(request.encode() for request in split_requests(content)) == content
    else:
        assert parse_token(content, "token").text().encode() == content


def seeds() -> Iterator[bytes]:
    """Give the known answers of requests and a line that begins as a token does."""
    for way, name in enumerate(("join_request", "sealed_join", "padded_join", "join_request")):
        yield from (bytes([way]) + content for content in vectors(name))
    yield b"\x04plst1-" + b"QUJD" * 64
