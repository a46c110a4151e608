"""What an operation of a rank is, by its name in a trace."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple


class OperationKind(IntEnum):
    """Where the time of an operation goes."""

    COMPUTE = 0
    DATA_LOADING = 1
    OTHER = 2
    COMMUNICATION = 3


BUSY: Final = (OperationKind.COMPUTE, OperationKind.DATA_LOADING, OperationKind.OTHER)
"""Kinds that are a rank's own work. The time of a communication holds the wait for its peers."""


class Meeting(IntEnum):
    """Whom an operation meets."""

    NOBODY = 0
    GROUP = 1
    NEXT = 2
    """What a stage sends is received by another rank: `X-send` meets `X-recv`."""


class Operation(NamedTuple):
    """How a name is read: `pair` names both ends of a point-to-point call alike."""

    kind: OperationKind
    meeting: Meeting
    pair: str = ""
    sends: bool = False


_COLLECTIVE: Final = re.compile(
    r"all[-_ ]?reduce|reduce[-_ ]?scatter|all[-_ ]?gather|all[-_ ]?to[-_ ]?all|broadcast|barrier"
    r"|nccl|rccl|gloo|\bcollective|clip.*grad|grad.*norm",
    re.IGNORECASE,
)
# The norm for clipping is summed over all ranks: in a 64-GPU trace its ends agree within a
# millisecond and the rank that comes last takes a thirtieth of the others' time.
_END: Final = re.compile(r"^(?P<pair>.*?)[-_ ]?(?P<end>send|recv|receive)$", re.IGNORECASE)
_DATA: Final = re.compile(
    r"data[-_ ]?load|batch[-_ ]?gen|next[-_ ]?batch|get[-_ ]?batch|input|fetch", re.IGNORECASE
)
_COMPUTE: Final = re.compile(
    r"compute|forward|backward|fwd|bwd|optimizer|matmul|gemm|attention|kernel", re.IGNORECASE
)


def operation(name: str) -> Operation:
    """Read an operation's name: collectives first, then both ends of a call, data and compute."""
    if _COLLECTIVE.search(name):
        return Operation(OperationKind.COMMUNICATION, Meeting.GROUP)
    if end := _END.match(name):
        sends = end["end"].lower() == "send"
        return Operation(OperationKind.COMMUNICATION, Meeting.NEXT, end["pair"], sends)
    if _DATA.search(name):
        return Operation(OperationKind.DATA_LOADING, Meeting.NOBODY)
    if _COMPUTE.search(name):
        return Operation(OperationKind.COMPUTE, Meeting.NOBODY)
    return Operation(OperationKind.OTHER, Meeting.NOBODY)
