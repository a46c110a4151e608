"""What a child answers, read as values: a driver that was taken over must not reach the agent.

The children hold no key so that a vendor's library cannot read it; a pickle that may name any
function would give the library the agent all the same.
"""

from __future__ import annotations

import io
import pickle
from enum import Enum
from multiprocessing.connection import Connection
from typing import Any, Final

MOST_BYTES: Final = 4 << 20
"""Of one answer: 1,024 processes with their control groups take a fourth of it."""
_KINDS: Final = {
    "collectors.devices.device_port": frozenset({
        "DeviceReading", "DevicesUnavailable", "Field", "Inventory", "Partition", "ProcessUse",
    }),
    "collectors.records.gap": frozenset({"Gap", "GapKind"}),
    "collectors.devices.bandwidth": frozenset({"Bandwidth"}),
}  # fmt: skip


class AnswerRefused(Exception):
    """A child sent what is no answer: says what was expected and what came."""


def receive(connection: Connection) -> object:
    """Take the next answer. Raises AnswerRefused, EOFError, OSError."""
    raw = connection.recv_bytes(MOST_BYTES)
    try:
        return _Answers(io.BytesIO(raw)).load()
    except AnswerRefused:
        raise
    except Exception as error:  # noqa: BLE001 (unpickling hostile bytes raises anything)
        raise AnswerRefused(f"expected an answer, got {type(error).__name__}") from None


class _Answers(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _KINDS.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member  # how some Pythons write a member of an enumeration
        raise AnswerRefused(f"expected a reading, got {module}.{name}")


def _member(kind: object, name: object) -> Enum:
    if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(name, str):
        return kind.__members__[name]
    raise AnswerRefused("expected a member of an enumeration")
