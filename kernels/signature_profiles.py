"""Read profiles of applications: recorded traces, kernel tables, this host's own history."""

from __future__ import annotations

import json
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from transport.process.printable import listed

from .families import UNKNOWN_APPLICATION, FamilyRules, pipeline_applications
from .kernel_mix import mix_rows
from .launches.kineto import gpu_events, open_trace, read_header
from .launches.read import amount, table_row
from .signatures import Signature, SignatureError

_MOST_BYTES: Final = 256 << 20
_NOT_ROWS: Final = frozenset({"since_ns", "until_ns", "cut_short"})
_Kernel = tuple[str, str, int, int | None]


def read_profile(path: Path, rules: FamilyRules, application: str | None = None) -> Signature:
    """Read one profile.

    path          a PyTorch trace (.json, .json.gz); a kernel table (.toml) with `application` and
                  [[kernel]] rows of name, launches and time_ns; or what
                  `pointillist agent history --kind activity --json` prints
    application   its class; None: what the file says, else `unknown`
    Raises        SignatureError, and TraceError for a broken trace
    """
    if path.suffix == ".toml":
        return _table(path, rules, application)
    if _is_history(path):
        return _history(path, application)
    header = read_header(path)
    said = header.application or pipeline_applications().get(header.pipeline_tag or "")
    launches = (
        (event.name, rules.classify(event.name)[0], 1, event.duration_ns)
        for event in gpu_events(path, reorder=1)
    )
    model = header.gpu_models[0] if header.gpu_models else "other"
    return _made(path, application or said, model, path.name, launches)


def _made(
    path: Path, application: str | None, model: str, source: str, kernels: Iterator[_Kernel]
) -> Signature:
    rows = tuple(mix_rows(kernels))
    if not rows:
        raise SignatureError(f"{path}: expected kernels, found none")
    name = path.name.split(".")[0]
    return Signature(name, application or UNKNOWN_APPLICATION, model, source, rows)


def _table(path: Path, rules: FamilyRules, application: str | None) -> Signature:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise SignatureError(f"{path}: expected at most {_MOST_BYTES} bytes")
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        kernels = [_table_row(row, rules) for row in table["kernel"]]
        source = f"{table.get('source', '')} {table.get('source_file', '')}".strip()
        said, model = table.get("application"), str(table.get("gpu_model", "other"))
        if not isinstance(said, str | None):
            raise TypeError(f"a class in quotes expected, got {said!r:.40}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SignatureError(f"{path}: expected a kernel table, got {error!r}") from None
    return _made(path, application or said, model, source, iter(kernels))


def _table_row(row: Any, rules: FamilyRules) -> _Kernel:
    name, launches, time_ns = table_row(row)
    return name, str(row.get("family") or rules.classify(name)[0]), launches, time_ns


def _is_history(path: Path) -> bool:
    try:
        with open_trace(path) as stream:
            return stream.read(32).lstrip().startswith(b'{"since_ns"')
    except OSError as error:
        raise SignatureError(f"{path}: cannot read ({error.strerror or error})") from None
    except (EOFError, zlib.error) as error:
        raise SignatureError(f"{path}: damaged gzip ({error})") from None


def _time(time_ns: Any) -> int | None:
    return None if time_ns is None else amount(int(time_ns))


def _history(path: Path, application: str | None) -> Signature:
    if path.stat().st_size > _MOST_BYTES:
        raise SignatureError(f"{path}: expected at most {_MOST_BYTES} bytes; take a shorter span")
    try:
        kinds = json.loads(path.read_text(encoding="utf-8"))
        kernels = [
            (
                str(row["name"]),
                str(row["family"]),
                amount(int(row["count"])),
                _time(row["gpu_time_ns"]),
            )
            for row in kinds.get("activity", ())
        ]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise SignatureError(f"{path}: expected kernel activity, got {error!r}") from None
    if "activity" not in kinds:
        found = listed([kind for kind in kinds if kind not in _NOT_ROWS], none="nothing")
        raise SignatureError(f"{path}: expected rows of `--kind activity`, got {found}")
    return _made(path, application, "other", path.name, iter(kernels))
