"""Stores for pages to show, and clients that ask for them as a browser does."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from starlette.testclient import TestClient

from aggregator.protocol.released import ReleasedWindow, SuppressedWindow
from aggregator.releases.store import Store
from tests.aggregator.releases.release_kit import (
    CATALOGUE,
    GPUS,
    make_task,
    noise,
    true_steps,
    window,
)
from web.access_tokens import SeriesOwners, new_token, read_tokens, write_tokens
from web.guard import QueryRecord
from web.page_shape import Role
from web.signed_chains import TranscriptFiles
from web.store_watch import StoreWatch
from web.web_server import WebSettings, guarded

HOSTS = 12_500
WINDOW_S = 60
BASIC_USER = "anybody"


def shares_of_time() -> dict[tuple[str, str], float]:
    """True amounts of a window: gemm 40 %, attention 20 %, idle 30 % of GPU time, in ms."""
    wall = HOSTS * GPUS * WINDOW_S * 1000.0
    mix = {"gpu_time/gemm": 0.4, "gpu_time/attention": 0.2, "idle": 0.3}
    by_model = {"H100/gpu_time/gemm": 0.4, "H100/gpu_time/attention": 0.2, "H100/idle": 0.3}
    return {
        **{("kernel_mix", cell): share * wall for cell, share in mix.items()},
        **{("kernel_mix_by_model", cell): share * wall for cell, share in by_model.items()},
        ("incidents", "nic_cross_traffic"): 900.0,
        ("host_network", "receive"): HOSTS * 400_000.0,
    }


def releases(
    series: str = "every-kind", *, windows: int = 3, domain: str = "demo", end_s: int | None = None
) -> Iterator[ReleasedWindow]:
    last = int(time.time() if end_s is None else end_s) // WINDOW_S * WINDOW_S
    task = make_task(windows, HOSTS, domain, last - windows * WINDOW_S)
    task = replace(task, series=series)
    truth, rng = true_steps(task, HOSTS, shares_of_time()), np.random.default_rng(5)
    for at in range(windows):
        vector = truth + noise(task, HOSTS, rng)
        vector[:2] = HOSTS
        yield window(task, vector, HOSTS, last - (windows - at) * WINDOW_S)


def fill(folder: Path, *series: str, domain: str = "demo", end_s: int | None = None) -> Path:
    """Write a store of some series with one suppressed window each; give the readers' folder."""
    with Store(folder / "leader.duckdb", folder / "releases", CATALOGUE) as store:
        for name in series or ("every-kind",):
            released = list(releases(name, domain=domain, end_s=end_s))
            for release in released:
                store.write(release)
            first = released[0].window_start_s
            store.suppress(
                SuppressedWindow(
                    name, 0, first - WINDOW_S, WINDOW_S, 1, "n_min", 900, 10_000, float(first)
                )
            )
    return folder / "releases"


@contextmanager
def client(
    store: Path,
    *,
    token_file: Path | None = None,
    record_file: Path | None = None,
    owners: SeriesOwners | None = None,
    transcripts: TranscriptFiles | None = None,
    task_dir: Path | None = None,
) -> Iterator[TestClient]:
    settings = WebSettings(
        store,
        store.parent / "rollups",
        token_file=token_file,
        record_file=record_file,
        owners=owners or SeriesOwners(),
        transcripts=transcripts,
        task_dir=task_dir,
    )
    watch = StoreWatch(store, settings.rollups, tasks=settings.tasks())
    record = QueryRecord(record_file)
    try:
        yield TestClient(
            guarded(settings, watch, record), "http://127.0.0.1", raise_server_exceptions=False
        )
    finally:
        record.close()
        watch.close()


def add_token(
    path: Path, name: str, role: Role, operator: str | None = None, *, life_s: int = 3_600
) -> dict[str, str]:
    """Make a token; give the header that a browser sends for it."""
    token, secret = new_token(name, role, int(time.time()) + life_s, operator)
    write_tokens(path, [*read_tokens(path), token])
    return header_of(secret)


def header_of(secret: str) -> dict[str, str]:
    """The header of a browser whose user put this into the password field."""
    pair = base64.b64encode(f"{BASIC_USER}:{secret}".encode()).decode()
    return {"authorization": f"Basic {pair}"}


_NAMES: Final = {"cell": "gemm", "reason": None, "cause": None, "component": None, "domain": None}


def make_hostile(store: Path, text: str) -> None:
    """Give all files of a store names that a page must not obey."""
    for path in store.rglob("*.parquet"):
        _rename(path, text)


def _rename(path: Path, text: str) -> None:
    table = pq.read_table(path, partitioning=None)
    for name, part in _NAMES.items():
        if name in table.column_names and pa.types.is_string(table.schema.field(name).type):
            column = table[name]
            hostile: Any = (
                pc.replace_substring(column, part, text)
                if part
                else pc.if_else(pc.is_valid(column), text, column)
            )
            at = table.column_names.index(name)
            table = table.set_column(at, table.schema.field(name), hostile)
    path.unlink()
    pq.write_table(table, path)
