"""Calls of BCC's C library, declared as its headers have them.

Its Python package (0.26) gives bpf_attach_uprobe six arguments where the library reads seven, and
misspells the declaration of those for perf events, whose 64-bit numbers then pass as 32 bits.
A version of the library that reads fewer arguments overlooks the last.
"""

from __future__ import annotations

import ctypes
from typing import Final

from transport.foreign import Signatures

_MODULE: Final = ctypes.c_void_p

SIGNATURES: Final[Signatures] = {
    "bpf_module_license": (ctypes.c_char_p, (_MODULE,)),
    "bpf_module_kern_version": (ctypes.c_uint, (_MODULE,)),
    # Module, type, name, code, its length, licence, kernel's version, level of the log, log, its
    # length, device, kind of attachment.
    "bcc_func_load": (
        ctypes.c_int,
        (
            _MODULE, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p,
            ctypes.c_uint, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, ctypes.c_char_p,
            ctypes.c_int,
        ),
    ),
    # Program, entry or return, event, file, offset, process, offset of a semaphore.
    "bpf_attach_uprobe": (
        ctypes.c_int,
        (
            ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64,
            ctypes.c_int, ctypes.c_uint32,
        ),
    ),
    # Program, type, event, period, frequency, process, CPU, group.
    "bpf_attach_perf_event": (
        ctypes.c_int,
        (
            ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64,
            ctypes.c_int, ctypes.c_int, ctypes.c_int,
        ),
    ),
    "bpf_close_perf_event_fd": (ctypes.c_int, (ctypes.c_int,)),
}  # fmt: skip
