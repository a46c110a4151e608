"""What a compiler reads in headers, beside what ctypes was told."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from transport.process.foreign import Signatures

REGISTERS_BYTES = 16
"""A longer structure is passed by its address, on x86-64's va_list as on arm64."""

_DESCRIBE = (Path(__file__).parent / "fakes" / "describe.h").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Kind:
    """A type as a call passes it.

    name    `number`: one that is not below 0, of no declared type
    target  size of what a pointer points to, 0: unknown
    """

    name: str
    size: int
    target: int = 0

    @classmethod
    def read(cls, text: str) -> Kind:
        name, size, target = text.split(":")
        return cls(name, int(size), int(target))

    @classmethod
    def of(cls, kind: Any) -> Kind:
        if kind is None:
            return cls("void", 0)
        code = getattr(kind, "_type_", None)
        if not isinstance(code, str) or code in "zPO":
            inner = getattr(kind, "_type_", None)
            known = inner is not None and not isinstance(inner, str)
            target = ctypes.sizeof(inner) if known else 0  # type: ignore[arg-type]
            return cls("pointer", ctypes.sizeof(kind), target)
        if code == "?":
            return cls("bool", ctypes.sizeof(kind))
        name = "float" if code in "fdg" else "signed" if code.islower() else "unsigned"
        return cls(name, ctypes.sizeof(kind))

    def takes(self, given: Kind) -> bool:
        """Tell whether the header's type takes what ctypes passes."""
        if self.name == "struct":
            return given.name == "pointer" and self.size > REGISTERS_BYTES
        if given.name == "number" or self.name == "enum":
            whole = {"signed", "unsigned", "number", "enum"}
            return {given.name, self.name} <= whole and given.size == self.size
        unknown = not self.target or not given.target
        same = (self.name, self.size) == (given.name, given.size)
        return same and (unknown or self.target == given.target)


@dataclass(frozen=True)
class Prototype:
    result: Kind
    arguments: tuple[Kind, ...]
    variadic: bool

    def faults(self, result: Kind, arguments: Sequence[Kind]) -> list[str]:
        """Say what is wrong with the types of a call; nothing where it fits."""
        found = []
        if not self.result.takes(result):
            found.append(f"gives {self.result}, declared {result}")
        count = len(self.arguments)
        if len(arguments) < count or (len(arguments) > count and not self.variadic):
            found.append(f"takes {count} arguments, declared {len(arguments)}")
        for place, (wanted, given) in enumerate(zip(self.arguments, arguments, strict=False), 1):
            if not wanted.takes(given):
                found.append(f"argument {place} is {wanted}, declared {given}")
        words = arguments[count:]  # of a variadic function
        short = [given for given in words if given.size != ctypes.sizeof(ctypes.c_long)]
        return found + [f"a word is passed as {given}" for given in short]


@dataclass(frozen=True)
class Headers:
    """Headers to include, in order, and where they lie besides the system's folders."""

    names: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    before: str = ""

    def prototypes(self, names: Mapping[str, str]) -> dict[str, Prototype]:
        """Read functions: name -> how C++ names its type."""
        shown = "".join(f'\tprintf("{n}"); Show<{t}>::call();\n' for n, t in names.items())
        source = f"{self.before}{self._includes()}{_DESCRIBE}int main() {{\n{shown}}}\n"
        found = {}
        for line in _run(source, "cpp", self.folders).splitlines():
            name, result, *arguments = line.split()
            variadic = arguments[-1:] == ["..."]
            kinds = tuple(Kind.read(one) for one in arguments[: -1 if variadic else None])
            found[name] = Prototype(Kind.read(result), kinds, variadic)
        return found

    def numbers(self, expressions: Sequence[str]) -> dict[str, int]:
        """Compute constant expressions: enumerators, macros, offsets, sizes."""
        shown = "".join(f'\tprintf("%lld\\n", (long long)({one}));\n' for one in expressions)
        declared = "int printf(const char *, ...);\n"
        source = (
            f"{self.before}{self._includes()}{declared}int main(void) {{\n{shown}return 0; }}\n"
        )
        lines = _run(source, "c", self.folders).splitlines()
        return dict(zip(expressions, map(int, lines), strict=True))

    def number(self, expression: str) -> int:
        return self.numbers([expression])[expression]

    def _includes(self) -> str:
        return "".join(f"#include <{name}>\n" for name in self.names)


def faults(signatures: Signatures, headers: Headers) -> dict[str, list[str]]:
    """Compare declared functions with their headers; only those that do not fit are given."""
    told = headers.prototypes({name: f"decltype({name})" for name in signatures})
    found = {}
    for name, (result, arguments) in signatures.items():
        kinds = [Kind.of(one) for one in arguments]
        if wrong := told[name].faults(Kind.of(result), kinds):
            found[name] = wrong
    return found


def layout_faults(
    structure: type[ctypes.Structure], fields: Mapping[str, str], kind: str, headers: Headers
) -> list[str]:
    """Compare a structure with the header's: our field -> the header's."""
    wanted = {ours: f"__builtin_offsetof({kind}, {theirs})" for ours, theirs in fields.items()}
    sizes = {ours: f"sizeof((({kind} *)0)->{theirs})" for ours, theirs in fields.items()}
    told = headers.numbers([*wanted.values(), *sizes.values()])
    found = []
    for name in fields:
        field = getattr(structure, name)
        given, real = (field.offset, field.size), (told[wanted[name]], told[sizes[name]])
        if given != real:
            found.append(f"{name}: expected offset and size {real}, got {given}")
    return found


def wheel_headers(header: str) -> Path:
    spec = importlib.util.find_spec("nvidia")
    assert spec is not None, "make setup installs NVIDIA's headers"
    roots = [Path(place) for place in spec.submodule_search_locations or ()]
    found = [path.parent for root in roots for path in sorted(root.glob(f"*/include/{header}"))]
    assert found, f"make setup installs {header}"
    return found[0]


@cache
def kernel_headers() -> Headers:
    """The running kernel's own types, from its BTF: newer than any installed header."""
    btf = Path("/sys/kernel/btf/vmlinux")
    tool = shutil.which("bpftool") or "/usr/sbin/bpftool"
    if not btf.exists() or not Path(tool).exists():
        pytest.skip("needs bpftool and a kernel with BTF")
    command = [tool, "btf", "dump", "file", str(btf), "format", "c"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return Headers((), before=text)


@cache
def _run(source: str, language: str, folders: tuple[Path, ...]) -> str:
    compiler, standard = {"c": ("gcc", "gnu17"), "cpp": ("g++", "gnu++14")}[language]
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}, as make tools installs it")
    with TemporaryDirectory() as folder:
        path, program = Path(folder, f"told.{language}"), Path(folder, "told")
        path.write_text(source, encoding="utf-8")
        includes = [f"-I{one}" for one in folders]
        built = subprocess.run(
            [compiler, "-w", f"-std={standard}", *includes, str(path), "-o", str(program)],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        if missing := re.search(r"fatal error: (\S+): No such file", built.stderr):
            pytest.skip(f"needs {missing[1]}, as make tools installs it")
        assert built.returncode == 0, built.stderr[:4000]
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout
