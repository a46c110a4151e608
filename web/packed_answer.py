"""Bytes of an answer, and how they are handed out: packed, and by a tag where nothing changed."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response


@dataclass(frozen=True, slots=True)
class PackedAnswer:
    """Bytes of an answer, plain and by gzip, and the tag that they are asked for by again.

    packed   None: gzip would not make them fewer
    """

    body: bytes
    packed: bytes | None
    tag: str

    def weight(self) -> int:
        """Bytes that it takes."""
        return len(self.body) + len(self.packed or b"")

    @staticmethod
    def of(body: bytes) -> PackedAnswer:
        """Pack bytes."""
        return PackedAnswer(body, gzip.compress(body, 6, mtime=0), _tag(body))

    @staticmethod
    def packed_already(body: bytes) -> PackedAnswer:
        """Keep bytes that are compressed in their own way."""
        return PackedAnswer(body, None, _tag(body))


def answered(
    request: Request, packed: PackedAnswer, media_type: str, kept: str = "private, no-cache"
) -> Response:
    """Hand out packed bytes, or say that what is held is still right."""
    headers = {"etag": packed.tag, "cache-control": kept, "vary": "accept-encoding, authorization"}
    asked = request.headers.get("if-none-match", "")
    if packed.tag in [tag.strip() for tag in asked.split(",")]:
        return Response(status_code=304, headers=headers)
    if packed.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(packed.packed, headers=headers, media_type=media_type)
    return Response(packed.body, headers=headers, media_type=media_type)


def _tag(body: bytes) -> str:
    return f'W/"{sha256(body).hexdigest()[:24]}"'
