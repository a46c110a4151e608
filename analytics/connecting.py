"""`pointillist.connect`: releases of a folder, or of a running server."""

from __future__ import annotations

import os
from pathlib import Path

from .fleet_releases import FleetReleases
from .price_list import load_prices
from .release_server import ReleaseServer, token_of
from .release_source import FolderSource, ReleaseSource
from .server_source import ServerSource
from .spent_budget import tasks_in


def connect(
    where: str | os.PathLike[str],
    *,
    prices: str | os.PathLike[str] | None = None,
    tasks: str | os.PathLike[str] | None = None,
    rollups: str | os.PathLike[str] | None = None,
    token_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> FleetReleases:
    """Read releases as frames.

    where       the Leader's folder of released Parquet, or the address of a `pointillist web`:
                https://HOST[:PORT], or http:// on this machine
    prices      a price list (TOML); None: the shipped one
    tasks       the folder of signed tasks (*.task): what windows cost of the budget
    rollups     of a folder: where roll-ups are kept; None: beside the releases, else in the user's
                cache
    token_file  of a server: the file of the token that opens it; None: POINTILLIST_TOKEN, if set
    ca_file     of a server: certificates that are trusted, PEM; None: the system's
    Raises      FileNotFoundError, PriceListError, ReportRejected, ValueError; of a server
                NotAFleetServer, FleetAccessRefused, FleetServerUnavailable
    """
    text = os.fspath(where)
    source: ReleaseSource
    if "://" in text:
        if rollups is not None:
            raise ValueError("rollups: expected none beside a server, got a folder")
        ca = None if ca_file is None else Path(ca_file)
        source = ServerSource(ReleaseServer(text, token_of(token_file), ca))
    else:
        if token_file is not None or ca_file is not None:
            raise ValueError("token_file, ca_file: expected a server beside them, got a folder")
        source = FolderSource(text, rollups)
    return FleetReleases(
        source,
        load_prices(None if prices is None else Path(prices)),
        () if tasks is None else tasks_in(Path(tasks)),
    )
