"""Which kernels the files of this host register: read once a file, in a child, and remembered."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import OrderedDict, deque
from typing import Final

from collectors.binaries.symbols import SymbolCache
from transport.process.privileges import interpreter

from .stub_child import MOST_CPU_S, READ
from .stub_table import MOST_PACKED, StubTable

_CODE: Final = "from collectors.stubs.stub_child import main; main()"
_MOST_WAITING: Final = 256
_MOST_HELD: Final = 32 << 20
_MOST_KNOWN: Final = 4096
_DEADLINE_S: Final = 10.0 * MOST_CPU_S
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

READING: Final = "being read"


class StubFiles:
    """Asked from one thread; a thread of its own waits for the children, one at a time."""

    def __init__(self, cache: SymbolCache | None = None) -> None:
        self.cache = cache
        self._held: OrderedDict[str, StubTable] = OrderedDict()
        self._refused: OrderedDict[str, str] = OrderedDict()
        self._reading: set[str] = set()
        self._waiting: deque[tuple[str, int]] = deque()
        self._done: deque[tuple[str, bytes]] = deque()
        self._wake = threading.Condition()
        self._child: subprocess.Popen[bytes] | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    def table(self, key: str, fd: int) -> StubTable | str:
        """Give what an open file registers, or why that is not known; `key` names its state."""
        self._take()
        held = self._held.get(key)
        if held is not None:
            self._held.move_to_end(key)
            return held
        if key in self._refused:
            return self._refused[key]
        if key in self._reading:
            return READING
        packed = self.cache.find_file(key) if self.cache is not None else None
        if packed is not None and self._hold(key, packed):
            return self._held[key]
        return self._begin(key, fd)

    def close(self) -> None:
        with self._wake:
            self._closing = True
            if self._child is not None:
                self._child.kill()
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        while self._waiting:
            os.close(self._waiting.popleft()[1])

    def _begin(self, key: str, fd: int) -> str:
        if not interpreter().whole:
            return self._refuse(key, "the agent's user cannot read the agent's own code")
        if len(self._waiting) >= _MOST_WAITING:
            return READING
        try:
            own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return self._refuse(key, f"it cannot be opened: {error.strerror}")
        self._reading.add(key)
        with self._wake:
            self._waiting.append((key, own))
            self._wake.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stubs", daemon=True)
            self._thread.start()
        return READING

    def _take(self) -> None:
        while self._done:
            key, answer = self._done.popleft()
            self._reading.discard(key)
            if answer[:1] != READ:
                self._refuse(key, answer[1:].decode("utf-8", "replace") or "the reader ended")
            elif not self._hold(key, answer[1:]):
                self._refuse(key, "the reader's answer was no table")
            elif self.cache is not None:
                self.cache.keep_file(key, answer[1:])

    def _refuse(self, key: str, why: str) -> str:
        self._refused[key] = why
        while len(self._refused) > _MOST_KNOWN:
            self._refused.popitem(last=False)
        return why

    def _hold(self, key: str, packed: bytes) -> bool:
        try:
            self._held[key] = StubTable(packed)
        except ValueError:
            return False
        while len(self._held) > 1 and sum(t.size for t in self._held.values()) > _MOST_HELD:
            self._held.popitem(last=False)
        return True

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closing:
                    self._wake.wait()
                if self._closing:
                    return
                key, fd = self._waiting.popleft()
            self._done.append((key, self._ask(fd)))

    def _ask(self, fd: int) -> bytes:
        """Give a child's answer to an open file, which is closed then."""
        python = interpreter()
        try:
            with self._wake:
                if self._closing:
                    return b""
                child = self._child = subprocess.Popen(
                    [python.program, "-P", "-S", "-s", "-c", _CODE], cwd="/",
                    env=os.environ | python.environment | _ONE_THREAD,
                    pass_fds=python.descriptors, stdin=fd, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, process_group=0,
                )  # fmt: skip
            late = threading.Timer(_DEADLINE_S, child.kill)
            late.start()
            try:
                answer = child.stdout.read(MOST_PACKED) if child.stdout is not None else b""
            finally:
                late.cancel()
                child.kill()
                child.wait()
        except OSError:
            return b""
        finally:
            os.close(fd)
        return answer
