"""BCC, for kernels without BTF: the system's package, found and put right."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

from collectors.port import SourceUnavailable
from transport.foreign import declare

from .bcc_calls import SIGNATURES

_SYSTEM_PACKAGES: Final = "/usr/lib/python3/dist-packages"


_TRACING: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))


def unavailable() -> str | None:
    """Say in one line why this loader cannot serve here, or None."""
    try:
        _bcc()
    except SourceUnavailable as error:
        return str(error)
    if not Path(f"/lib/modules/{platform.release()}/build").exists():
        return "expected kernel headers under /lib/modules/.../build for BCC, found none"
    if tracing() is None:
        return "expected tracefs at /sys/kernel/tracing, readable; it is not mounted or not ours"
    return None


def compile_program(text: str, flags: list[str]) -> Any:
    """Compile one program. Raises SourceUnavailable."""
    try:
        return _bcc().BPF(text=text.encode(), cflags=flags)
    except SourceUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - bcc raises Exception itself
        raise SourceUnavailable(f"BCC cannot compile or attach: {error}") from None


def library() -> Any:
    """Give BCC's C library, as its Python package has it. Raises SourceUnavailable."""
    return _bcc().lib


@cache
def _bcc() -> Any:
    """Import the system's one package `bcc`, and put right what it declares."""
    module = sys.modules.get("bcc") or _imported()
    try:
        declare(module.lib, SIGNATURES)
    except AttributeError as error:
        raise SourceUnavailable(f"expected another version of BCC: {error}") from None
    return module


def _imported() -> Any:
    """Import it without putting its folder on the path."""
    spec = importlib.machinery.PathFinder.find_spec("bcc", [_SYSTEM_PACKAGES])
    if spec is None or spec.loader is None:
        raise SourceUnavailable("expected BCC (package python3-bpfcc), found none")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        del sys.modules["bcc"]
        raise SourceUnavailable(f"BCC cannot be loaded: {error}") from None
    return module


def tracing() -> Path | None:
    """Give the folder of the kernel's tracefs, where it is mounted and ours to read."""
    for folder in _TRACING:
        if os.access(folder / "events", os.R_OK | os.X_OK):
            return folder
    return None
