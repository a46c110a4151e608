"""Names of kernels by their host stubs, from the code that registers them; nothing is run.

A compiler leaves constructors that call, once a kernel,
    __cudaRegisterFunction(handle, host stub, device name, device name, -1, 0, 0, 0, 0, 0)
The function is found by its import; by its symbol, where the runtime is static; and where that was
stripped, by structure: what is called behind a fat binary's wrapper with code and twice a string.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import BinaryIO, Final, NamedTuple

from collectors.binaries.elf import ElfError, Machine

from .arm64_code import Arm64Code
from .loaded_file import LoadedFile
from .x86_code import X86Code

Code = X86Code | Arm64Code
_CUDA, _HIP = "__cudaRegisterFunction", "__hipRegisterFunction"
_MOST_CALLS: Final = 500_000
_MOST_STARTS: Final = 64
_CONSTRUCTOR: Final = 2048
_MOST_CALLS_OF_ONE: Final = 40
_NO_BOUND: Final = 0xFFFFFFFF
"""Of threads. `__cudaRegisterVar` is called alike, and has 0 or 1 there."""
_STUB: Final = 2048
_HOPS: Final = 3
_SAMPLE: Final = 300
_AGREED: Final = 0.9


class CodePart(NamedTuple):
    """Bytes of a file that are loaded to be executed, and their virtual address."""

    offset: int
    size: int
    address: int


@dataclass(slots=True)
class HostStubs:
    """What a file registers; places are virtual addresses, as the file states them.

    how         `import`, `symbol` or `structure`: how the registering function was found
    names       by host stub (CUDA), or by the handle's variable (HIP)
    returns     stubs by where their launch returns to, where it is given an opaque handle (CUDA 13)
    launches    functions by which the stubs launch, where a static runtime was stripped
    missed      registrations of which stub or name was not found
    """

    how: str = ""
    names: dict[int, str] = field(default_factory=dict)
    returns: dict[int, int] = field(default_factory=dict)
    launches: list[int] = field(default_factory=list)
    missed: int = 0
    code: list[CodePart] = field(default_factory=list)


def read_stubs(file: BinaryIO) -> HostStubs:
    """Read what a program or library registers. Raises ElfError."""
    loaded = LoadedFile(file)
    code = Arm64Code(loaded) if loaded.machine is Machine.ARM64 else X86Code(loaded)
    found = _stubs(loaded, code)
    found.code = [CodePart(o, e - b, b) for b, e, o in loaded.layout.code_ranges()]
    return found


def _stubs(file: LoadedFile, code: Code) -> HostStubs:
    found = HostStubs()
    calls: dict[int, int] = {}
    targets: Iterable[int] = ()
    if slots := file.slots((_CUDA, _HIP)):
        found.how = "import"
        targets, through = code.jumps_through(slots)
        calls = dict.fromkeys(through, 6)
    elif targets := file.defined((_CUDA, _HIP)):
        found.how = "symbol"
    elif targets := _by_structure(file, code):
        found.how = "structure"
    calls |= code.calls(list(targets))
    _expect_few(calls)
    for _, values in code.arguments(calls):
        _keep(file, found, values.get(code.HOST), values.get(code.NAME))
    if _CUDA in slots.values() or not slots:
        _find_launches(file, code, found)
    return found


def _expect_few(calls: Iterable[int]) -> None:
    count = sum(1 for _ in calls)
    if count > _MOST_CALLS:
        raise ElfError(f"expected at most {_MOST_CALLS} registrations, got {count}")


def _keep(file: LoadedFile, found: HostStubs, host: int | None, name: int | None) -> None:
    text = file.text(name) if host is not None and name is not None and file.holds(host) else None
    if host is None or text is None:
        found.missed += 1
    else:
        found.names.setdefault(host, text)


def _by_structure(file: LoadedFile, code: Code) -> list[int]:
    votes: Counter[int] = Counter()
    for start in code.mentions(file.wrappers())[:_MOST_STARTS]:
        values: dict[str, int] = {}
        calls = 0
        for _, _, name, operands in code.walk(start, _CONSTRUCTOR, values):
            target = code.target(0, operands) if name in code.CALLS else None
            if target is not None:
                if _registers(file, code, values):
                    votes[target] += 1
                calls += 1
            elif name in code.ENDS or calls > _MOST_CALLS_OF_ONE:
                break
    return [max(votes, key=lambda target: votes[target])] if votes else []


def _registers(file: LoadedFile, code: Code, values: dict[str, int]) -> bool:
    """Tell whether a call has the arguments of one that registers a kernel."""
    host, text = values.get(code.HOST), values.get(code.NAME)
    if host is None or text is None or values.get(code.BOUND) != _NO_BOUND:
        return False
    return values.get(code.DEVICE) == text and file.executable(host) and file.text(text) is not None


class _Launch(NamedTuple):
    target: int
    returns_to: int
    by_handle: bool


def _find_launches(file: LoadedFile, code: Code, found: HostStubs) -> None:
    """Find where stubs launch: all of them, where they give a handle; else as many as agree."""
    stubs = sorted(found.names)
    sample = random.Random(len(stubs)).sample(stubs, min(len(stubs), _SAMPLE))  # noqa: S311
    seen = {stub: _launch_of(file, code, stub, stubs) for stub in sample}
    if any(launch.by_handle for launch in seen.values() if launch is not None):
        seen = {stub: seen.get(stub) or _launch_of(file, code, stub, stubs) for stub in stubs}
        found.returns = {
            launch.returns_to: stub
            for stub, launch in seen.items()
            if launch is not None and launch.by_handle
        }
    if found.how != "structure":
        return
    votes = Counter(launch.target for launch in seen.values() if launch is not None)
    found.launches = [
        target
        for target, count in votes.items()
        if count >= _AGREED * votes.total() and file.executable(target)
    ]


def _launch_of(file: LoadedFile, code: Code, stub: int, stubs: list[int]) -> _Launch | None:
    """Find the call by which a stub launches, where it is or where it goes on to.

    CUDA 12     lea rdi, [stub]; call cudaLaunchKernel
    CUDA 13     lea rsi, [stub]; lea rdi, [H]; call __cudaGetKernel; mov rdi, [H]; call launch
    """
    following = bisect_right(stubs, stub)
    end = min(stubs[following] if following < len(stubs) else stub + _STUB, stub + _STUB)
    begin = stub
    for _ in range(_HOPS):
        launch, onward = _launch_in(code, stub, begin, end)
        if launch is not None or onward is None or not file.executable(onward):
            return launch
        begin, end = onward, onward + _STUB
    return None


def _launch_in(code: Code, stub: int, begin: int, end: int) -> tuple[_Launch | None, int | None]:
    values: dict[str, int] = {}
    loads: dict[str, int] = {}
    handles: set[int] = set()
    given: dict[int, _Launch] = {}
    onward: int | None = None
    for address, size, name, operands in code.walk(begin, end - begin, values):
        after = address + size
        target = code.target(after, operands) if name in code.CALLS | code.JUMPS else None
        if target is not None:
            if values.get(code.FIRST) == stub:
                return _Launch(target, after, False), None
            if values.get(code.SECOND) == stub and code.FIRST in values:
                handles.add(values[code.FIRST])
            elif code.FIRST in loads:
                given.setdefault(loads[code.FIRST], _Launch(target, after, True))
            elif onward is None and (name in code.CALLS or not begin <= target < end):
                onward = target
            for handle in handles & given.keys():
                return given[handle], None
        code.note_load(loads, values, after, name, operands)
    return None, onward
