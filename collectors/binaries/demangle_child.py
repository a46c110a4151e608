"""Run as a program: lines of mangled names come, lines of demangled ones go.

A name of 200 letters can stand for one of terabytes, and the library has no bound: this process
has bounds, opens no file and no socket, the agent's key least of all, and begins no process.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from typing import Any, Final

_MOST_MEMORY: Final = 96 << 20
_MOST_CPU_S: Final = 1
PR_SET_NO_NEW_PRIVS: Final = 38
MOST_NAME: Final = 4096

DEMANGLE: Final = (ctypes.c_void_p, (ctypes.c_char_p, *(ctypes.c_void_p,) * 3))
LIBC: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "free": (None, (ctypes.c_void_p,)),
    "strnlen": (ctypes.c_size_t, (ctypes.c_void_p, ctypes.c_size_t)),
    "prctl": (ctypes.c_int, (ctypes.c_int, *(ctypes.c_ulong,) * 4)),
}


def _main() -> None:
    demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    demangle.restype, demangle.argtypes = DEMANGLE
    libc = ctypes.CDLL(None)
    for function, (result, arguments) in LIBC.items():
        entry = getattr(libc, function)
        entry.restype, entry.argtypes = result, arguments
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (0, 0))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
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
