"""Functions of C libraries, called with no other types than their headers declare."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

Signatures = Mapping[str, tuple[Any, tuple[Any, ...]]]
"""Name of a function -> its result and its arguments, as ctypes calls them."""

LIBC: Final[Signatures] = {
    # Three of them take fewer arguments than this for some options: the kernel reads five words.
    "prctl": (ctypes.c_int, (ctypes.c_int, *(ctypes.c_ulong,) * 4)),
    "capset": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p)),
    "fstatfs": (ctypes.c_int, (ctypes.c_int, ctypes.c_void_p)),
    "adjtimex": (ctypes.c_int, (ctypes.c_void_p,)),
    # A va_list is passed on as the address it came as, on x86-64 and on arm64.
    "vsnprintf": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p),
    ),
    "malloc_trim": (ctypes.c_int, (ctypes.c_size_t,)),
}


def declare(library: ctypes.CDLL, signatures: Signatures) -> None:
    """Give functions their types, or ctypes passes 32 bits for a number. Raises AttributeError."""
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


@cache
def libc() -> ctypes.CDLL:
    """The C library of this process; one that lacks a function raises AttributeError at its use."""
    library = ctypes.CDLL(None, use_errno=True)
    for name, signature in LIBC.items():
        with suppress(AttributeError):
            declare(library, {name: signature})
    return library
