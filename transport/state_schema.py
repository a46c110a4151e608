"""State files say which tables they have; those of another version are refused as what they are."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def schema_of(db: sqlite3.Connection) -> int:
    """Give the version that a file is marked with; 0 for one that is new or was never marked."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def other_schema(
    path: Path | str, db: sqlite3.Connection, reads: int, *, unmarked: int = 0
) -> str | None:
    """Say of a sound file that another version wrote it, and the way out; None where it is ours.

    reads      the version that this program reads
    unmarked   what a file without a mark counts as
    """
    found = schema_of(db) or unmarked
    if found == reads:
        return None
    writer = "a newer" if found > reads else "an older"
    return (
        f"{path}: written by {writer} version of Pointillist (schema {found}, this one reads "
        f"{reads}); it is sound: start that version again"
    )
