"""Run as a program: reads one file, its standard input, and answers with what it registers.

Files come from any user. While it reads it has bounds, no capability, and no file or socket that
it could open: the agent's key least of all.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from collectors.binaries.elf import ElfError
from transport.process.privileges import give_up_capabilities, harden

from .host_stubs import read_stubs
from .stub_table import pack

MOST_CPU_S: Final = 60
_MOST_MEMORY: Final = 320 << 20
"""Of addresses; NumPy and Capstone, in one thread, take 113 MiB of them, 38 of memory. The agent's
unit and its container have 512 MiB for both: a stranger's file must not end the agent."""
_FIRST_TO_END: Final = "1000"
_NICE: Final = 10

READ, REFUSED = b"+", b"-"


def main() -> None:
    """Answer `+` and a packed table, or `-` and why there is none."""
    give_up_capabilities()
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_END, encoding="ascii")
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (0, 0))
    harden()
    try:
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as file:
            answer = READ + pack(read_stubs(file))
    except ElfError as error:
        answer = REFUSED + str(error).encode("utf-8", "replace")
    except MemoryError:
        answer = REFUSED + f"expected a file that is read in {_MOST_MEMORY >> 20} MiB".encode()
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
