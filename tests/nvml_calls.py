"""Run as a program that finds the fake library: what `pynvml` passes in the calls that we make.

Prints JSON: a function's name in C -> each different list of its arguments as [kind, size, target].
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

import pynvml

from collectors.devices.device_port import Field
from collectors.devices.nvml import NvmlReader
from tests.fake_nvml_kit import FakeDriver
from tests.foreign_kit import Kind

Passed = list[tuple[str, int, int]]
WITH_INSTANCES: Final = (
    "0 nvmlDeviceGetMigMode value 1 1", "0 mig_instances value 1", "101 gpm value 73",
)  # fmt: skip
WITHOUT_GPM: Final = ("* nvmlGpmQueryDeviceSupport value 0",)


def recorded(folder: Path) -> dict[str, list[Passed]]:
    """Run this on the fake library, as GPUs of two kinds; give what was passed in each call."""
    calls: dict[str, list[Passed]] = {}
    for generation in (WITH_INSTANCES, WITHOUT_GPM):
        driver = FakeDriver(folder)
        driver.play(*generation)
        done = subprocess.run(
            [sys.executable, "-m", "tests.nvml_calls"],
            env={**os.environ, **driver.environment},
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        )
        for name, variants in json.loads(done.stdout).items():
            calls.setdefault(name, []).extend(variants)
    return calls


def passed(argument: Any) -> Kind:
    if isinstance(argument, int):
        return Kind("number" if argument >= 0 else "signed", ctypes.sizeof(ctypes.c_int))
    if argument is None or isinstance(argument, bytes | str):
        return Kind("pointer", ctypes.sizeof(ctypes.c_void_p))
    if type(argument).__name__ == "CArgObject":  # byref
        return _pointer_to(type(argument._obj))
    if isinstance(argument, ctypes.Array):
        return _pointer_to(type(argument))
    return Kind.of(type(argument))


def _pointer_to(kind: Any) -> Kind:
    element = kind._type_ if issubclass(kind, ctypes.Array) else kind
    return Kind("pointer", ctypes.sizeof(ctypes.c_void_p), ctypes.sizeof(element))


def main() -> None:
    found: dict[str, list[Passed]] = {}
    real = pynvml._nvmlGetFunctionPointer

    def recording(name: str) -> Callable[..., int]:
        function = real(name)

        def call(*arguments: Any) -> int:
            kinds: Passed = [astuple(passed(one)) for one in arguments]
            calls = found.setdefault(name, [])
            if kinds not in calls:
                calls.append(kinds)
            return int(function(*arguments))

        return call

    pynvml._nvmlGetFunctionPointer = recording
    reader = NvmlReader()
    reader.open()
    for _ in range(2):
        for gpu in (0, 1):
            reader.read(gpu, frozenset(Field), processes=True)
    reader.close()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
