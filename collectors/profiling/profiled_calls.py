"""One GPU call with everything that is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from collectors.binaries.proc_maps import Module
from collectors.gpu_calls.counts import CallSample
from collectors.gpu_calls.meanings import CallKind

LAUNCHES: Final = frozenset({CallKind.LAUNCH, CallKind.GRAPH_LAUNCH})


class NamedCall(NamedTuple):
    """A sampled call.

    kind       what the table's row says it is
    kernel     name of what was launched, "" for other calls
    on_stream  the call names a stream: 0 then is the default stream
    stack      addresses, the innermost first; empty where none was taken
    """

    sample: CallSample
    kind: CallKind
    kernel: str
    on_stream: bool
    stack: tuple[int, ...]

    @property
    def title(self) -> str:
        """The kernel, or for other calls the call."""
        return self.kernel or self.sample.call


@dataclass(frozen=True, slots=True)
class ProfiledProcess:
    """The profiled process, and when it was looked at.

    begun_ns   CLOCK_BOOTTIME
    unix_ns    the same instant in nanoseconds since 1970
    threads    names by thread id
    modules    what of which files was mapped, the program's first; with the file's build id
    """

    pid: int
    name: str
    begun_ns: int
    unix_ns: int
    ended_ns: int
    threads: dict[int, str]
    modules: tuple[tuple[Module, str], ...]
    lost: dict[str, int]


class ProfileWriter(Protocol):
    """One format: takes calls as they come, and ends with what is known then."""

    def add(self, calls: list[NamedCall]) -> None:
        """Take calls."""
        ...

    def finish(self, subject: ProfiledProcess) -> None:
        """Write the rest. Raises OSError."""
        ...
