"""Run as a program of its own: lines of mangled names come, lines of demangled ones go.

A name of 200 letters can stand for one of terabytes (each part twice the one before), and the
library has no bound: so the process that calls it has bounds, and nothing to lose.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from typing import Final

_MOST_MEMORY: Final = 96 << 20
_MOST_CPU_S: Final = 1
MOST_NAME: Final = 4096


def _main() -> None:
    demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    libc = ctypes.CDLL(None)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.strnlen.restype, libc.strnlen.argtypes = (
        ctypes.c_size_t,
        (ctypes.c_void_p, ctypes.c_size_t),
    )
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        mangled = line.rstrip(b"\n")
        found = demangle(mangled, None, None, None)
        name = mangled
        if found:
            name = ctypes.string_at(found, libc.strnlen(found, MOST_NAME))
            libc.free(found)
        sys.stdout.buffer.write(name.replace(b"\n", b" ") + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
