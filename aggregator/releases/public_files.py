"""Files that readers under other users may read, and see whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_whole(rows: pa.Table, target: Path) -> None:
    """Write beside the target, sync, rename: a reader sees the whole file or none."""
    for folder in (target.parent.parent, target.parent):
        public_folder(folder)
    partial = target.with_name(f".{target.name}.partial")
    pq.write_table(rows, partial, compression="zstd")
    make_public(partial)
    partial.replace(target)
    sync_folder(target.parent)


def make_public(path: Path) -> None:
    """Let every user read a finished file or folder, whatever the umask, and sync it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Released numbers are public: readers run under other users than the Leader.
        os.fchmod(descriptor, 0o755 if path.is_dir() else 0o644)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def public_folder(folder: Path) -> None:
    """Make a folder that every user may enter, and those above it."""
    if not folder.is_dir():
        public_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        make_public(folder)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
