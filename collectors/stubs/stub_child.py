"""Run as a program: reads one file, its standard input, and answers with what it registers.

Files come from any user. While it reads it has bounds, no capability, and no file or socket that
it could open: the agent's key least of all.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

from collectors.binaries.elf import ElfError
from transport.process.foreign import libc
from transport.process.privileges import give_up_capabilities

from .host_stubs import read_stubs
from .stub_table import pack

MOST_CPU_S: Final = 60
_MOST_MEMORY: Final = 768 << 20
"""Of addresses; NumPy and Capstone take 300 MiB of them, and 38 MiB of memory."""
_NICE: Final = 10
_PR_SET_NO_NEW_PRIVS: Final = 38

READ, REFUSED = b"+", b"-"


def main() -> None:
    """Answer `+` and a packed table, or `-` and why there is none."""
    give_up_capabilities()
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (0, 0))
    libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    try:
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as file:
            answer = READ + pack(read_stubs(file))
    except ElfError as error:
        answer = REFUSED + str(error).encode("utf-8", "replace")
    except MemoryError:
        answer = REFUSED + b"expected a file that is read in 768 MiB"
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
