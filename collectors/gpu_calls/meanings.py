"""What a probed call and its arguments can mean, and where an argument can lie."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

MAX_ROWS: Final = 512
MAX_SLOT: Final = 15
MAX_OFFSET: Final = 4095
MAX_ELEMENT_SIZES: Final = 16


class ProbeTableError(ValueError):
    """A table that cannot be used: says where, what was expected and what came."""


class CallKind(StrEnum):
    """What a call means to the programs, in the order of `enum kind`."""

    COUNT = "count"
    LAUNCH = "launch"
    GRAPH_LAUNCH = "graph_launch"
    ALLOCATE = "allocate"
    FREE = "free"
    COPY = "copy"
    MEMSET = "memset"
    WAIT = "wait"
    NAME = "name"
    COLLECTIVE = "collective"


class Meaning(StrEnum):
    """What an argument is, in the order of `enum meaning`.

    object      kernel, freed pointer, graph or communicator, by the row's kind
    out         address to which the call writes the pointer or handle that it makes
    grid        x, y, z as 32-bit words of a struct dim3 (two slots, or in memory)
    grid_x      the first of three slots of 32 bits
    size        bytes or elements; times size_y and size_z, where they are given
    pitch_out   address to which the call writes the bytes of a line: times size
    datatype    index into the row's element_sizes
    name        address of the kernel's name; host the address of its host stub
    module      address of the name of the module's or library's file
    """

    OBJECT = "object"
    OUT = "out"
    GRID = "grid"
    GRID_X = "grid_x"
    BLOCK = "block"
    BLOCK_X = "block_x"
    SHARED = "shared"
    STREAM = "stream"
    EVENT = "event"
    SIZE = "size"
    SIZE_Y = "size_y"
    SIZE_Z = "size_z"
    PITCH_OUT = "pitch_out"
    DATATYPE = "datatype"
    DIRECTION = "direction"
    NAME = "name"
    HOST = "host"
    MODULE = "module"


class ArgumentPlace(NamedTuple):
    """Where an argument lies: an integer slot of the call, or memory that a slot points to.

    slot    0, 1, ...: registers first, then words of the stack, as the ABI has it
    offset  of the value behind the pointer in that slot, or None: the slot itself
    """

    slot: int
    offset: int | None = None
