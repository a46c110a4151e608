"""A time as people write it on the command line."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from .output import usage_error

_NS_PER_S: Final = 1_000_000_000
_SPANS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def moment(text: str, now_ns: int, option: str) -> int:
    """Read a time: a span before now, ISO 8601 (UTC unless it says otherwise) or Unix seconds."""
    span = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if span:
        return now_ns - int(span[1]) * _SPANS[span[2]] * _NS_PER_S
    if re.fullmatch(r"\d{1,10}(\.\d{1,9})?", text):
        whole, _, part = text.partition(".")
        return int(whole) * _NS_PER_S + int((part or "0").ljust(9, "0"))
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1_000_000) * 1_000
    raise usage_error(f"{option}: expected 10m, 2h, ISO 8601 or Unix seconds, got {text!r}")
