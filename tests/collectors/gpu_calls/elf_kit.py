"""Small programs and libraries, compiled as the tests need them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from collectors.gpu_calls.probe_table import CallKind, ProbeRow
from collectors.records.gpu_calls import ProbeGroup


def stub(name: str) -> str:
    return (Path(__file__).parent / "stubs" / f"{name}.c").read_text(encoding="utf-8")


LIBRARY = stub("library")
STATIC = LIBRARY[: LIBRARY.index("static int resolved")]
"""The same without the indirect function, which a static program would resolve at its start."""


def row(
    group: ProbeGroup,
    symbols: tuple[str, ...] = (),
    files: tuple[str, ...] = ("*",),
    usdt: tuple[str, ...] = (),
    returns: bool = False,
) -> ProbeRow:
    """A row of a probe table that says where it is attached, and nothing of arguments."""
    return ProbeRow(
        kind=CallKind.COUNT, id="kit.row", group=group, files=files, symbols=symbols, usdt=usdt,
        returns=returns,
    )  # fmt: skip


def run(*command: str | Path, text: str | None = None) -> None:
    subprocess.run(list(map(str, command)), check=True, input=text, text=True, timeout=60)


def compile_c(source: str, target: Path, *flags: str | Path) -> Path:
    """Compile one C source into `target`; gcc, at -O1, with a build id."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, as make tools installs it")
    plain = ["-O1", "-Wl,--build-id=sha1", "-fcf-protection=none"]
    run("gcc", *plain, "-x", "c", "-", "-x", "none", "-o", target, *flags, text=source)
    return target


def library(target: Path, *flags: str | Path, source: str = LIBRARY) -> Path:
    return compile_c(source, target, "-shared", "-fPIC", *flags)
