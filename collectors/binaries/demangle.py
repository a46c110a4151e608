"""C++ names as people write them; they come from any process: bounded in length and cost."""

from __future__ import annotations

import os
import re
import subprocess
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from transport.process.privileges import interpreter

MOST_NAME: Final = 4096
_DEADLINE_S: Final = 2.0
_ATTEMPTS: Final = 2
_MOST_FAILURES: Final = 16
_MOST_KNOWN: Final = 65_536
_MOST_CHARACTERS: Final = 16 << 20
_CUDA_STUB: Final = re.compile(r"(?:_ZL?(\d+))?__device_stub_(?=_Z)")
_HIP_STUB: Final = "__device_stub__"


def kernel_symbol(symbol: str) -> str:
    """Give the mangled kernel whose host stub a symbol is; other symbols as they are.

    nvcc calls the stub of `_Z3addPf` `__device_stub__Z3addPf`, and mangles that once more.
    """
    found = _CUDA_STUB.match(symbol)
    if found is None:
        return symbol
    if found[1] is None:
        return symbol[found.end() :]
    begin = found.end(1)
    return symbol[found.end() : begin + int(found[1][:6])] or symbol


class Demangler:
    """Demangles in a child process, many names at once; remembers the last 65,536, of 16 MiB.

    failures  names that broke the child or its bounds: they are given as they came. After 16 of
              them no child is asked any more: somebody makes such names on purpose
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, str] = OrderedDict()
        self._characters = 0
        self.failures = 0

    def demangle(self, symbols: Sequence[str]) -> list[str]:
        """Give the readable name of each symbol, or itself; at most 4096 characters."""
        wanted = {symbol: kernel_symbol(symbol)[:MOST_NAME] for symbol in symbols}
        unknown = [
            name
            for name in dict.fromkeys(wanted.values())
            if name not in self._known and name.startswith("_Z") and name.isprintable()
        ]
        for name, text in self._ask(unknown).items():
            self._known[name] = text.replace(_HIP_STUB, "")[:MOST_NAME]
            self._characters += len(name) + len(self._known[name])
        readable = [self._known.get(wanted[symbol], wanted[symbol]) for symbol in symbols]
        while len(self._known) > _MOST_KNOWN or self._characters > _MOST_CHARACTERS:
            self._characters -= sum(map(len, self._known.popitem(last=False)))
        return readable

    def _ask(self, names: list[str]) -> dict[str, str]:
        """Ask children until each name is answered or has broken one; then the rest stay plain."""
        answers: dict[str, str] = {}
        for _ in range(_ATTEMPTS):
            if not names or self.failures >= _MOST_FAILURES:
                break
            lines = _run_child(names)
            answers |= dict(zip(names, lines, strict=False))
            if len(lines) < len(names):
                self.failures += 1
                answers[names[len(lines)]] = names[len(lines)]
            names = names[len(lines) + 1 :]
        return answers | dict(zip(names, names, strict=True))


def _run_child(names: list[str]) -> list[str]:
    """Give the lines that a child answered in time, without the last where it is cut off."""
    text = "".join(f"{name}\n" for name in names).encode("utf-8", "replace")
    python = interpreter()
    program = str(Path(__file__).with_name("demangle_child.py"))
    try:
        done = subprocess.run(
            [python.program, "-P", "-S", "-s", program], env=os.environ | python.environment,
            pass_fds=python.descriptors, input=text, capture_output=True, timeout=_DEADLINE_S,
            check=False,
        )  # fmt: skip
        said = done.stdout
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
    except OSError:
        return []
    whole = said[: said.rfind(b"\n") + 1]
    return whole.decode("utf-8", "replace").split("\n")[:-1][: len(names)]
