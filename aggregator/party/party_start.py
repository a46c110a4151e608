"""How a party's process begins: what root prepares, another user, health over HTTP, signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from transport.files.private_files import set_folder
from transport.process.privileges import Dropped, drop_to, ensure_users
from transport.process.unforeseen import keep_in

from .channel import prepare_socket_folder
from .channel_address import ChannelAddress
from .config import HttpAddress
from .health import Health


def silent(line: str) -> None:
    """Say nothing."""


def prepare_socket(user: str, address: ChannelAddress, peer_group: str | None) -> None:
    if address.socket is not None:
        owner = user if os.geteuid() == 0 else None
        prepare_socket_folder(address.socket, owner, peer_group)


def prepare_folders(user: str, mode: int, *folders: Path) -> None:
    """Make the party's own folders while root still can give them away."""
    root = os.geteuid() == 0
    if root:
        ensure_users()
    for folder in folders:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            set_folder(folder, mode, *((user, user) if root else ()))


def become(user: str, state_dir: Path, *, umask: int) -> Dropped:
    """Give root up; details of what nobody foresaw lie in the party's own folder from then on."""
    os.umask(umask)
    dropped = drop_to(user)
    keep_in(state_dir)
    return dropped


@contextmanager
def health_served(health: Health, address: HttpAddress | None) -> Iterator[None]:
    """Serve health and metrics meanwhile, where the configuration says so.

    Raises      AddressUnavailable
    """
    port = None if address is None else health.serve(address)
    try:
        yield
    finally:
        if port is not None:
            port.close()


def on_signals(stop: Callable[[], None]) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
