"""Start a party as a process: privileges first, then keys, then work until a signal."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from transport.opening import Side, open_transport, prepare_transport
from transport.privileges import Dropped, drop_to, ensure_users
from transport.supervision import Notifier
from wire.catalogue import Catalogue

from .channel import prepare_socket_folder
from .compaction import NO_ROLL_UPS, RollUps
from .helper_shell import HelperShell
from .incident_detector import Detector
from .leader_shell import LeaderShell
from .party_config import HelperConfig, HttpAddress, LeaderConfig
from .party_health import Health
from .runners import Checkpoint, no_checkpoint
from .store import Store
from .witness.witness_config import WitnessConfig
from .witness.witness_shell import WitnessShell


def _silent(line: str) -> None:
    """Say nothing."""


def run_leader(
    config: LeaderConfig,
    *,
    say: Callable[[str], None] = _silent,
    checkpoint: Checkpoint = no_checkpoint,
    roll_ups: RollUps = NO_ROLL_UPS,
) -> None:
    """Run the Leader until SIGTERM or SIGINT.

    say         gets one line about the user it runs as
    roll_ups    brought up to date before windows are removed for their age
    Raises      what `LeaderShell` raises; PrivilegeError, DetectorFileError
    """
    released = (config.database.parent, config.releases_dir)
    _prepare(config.user, 0o700, config.state_dir)
    _prepare(config.user, 0o755, *released)
    prepare_transport(config.transport, Side.AGGREGATOR)
    say(_become(config.user, umask=0o022).line)  # releases are for every reader of the machine
    catalogue = Catalogue.load(config.catalogue)
    rates = config.incident_rates
    detector = Detector.shipped() if rates is None else Detector.load(rates)
    with (
        Store(
            config.database,
            config.releases_dir,
            catalogue,
            detector=detector,
            agents_model=config.agents_model,
            keep_days=config.keep_days,
            roll_ups=roll_ups,
        ) as store,
        open_transport(config.transport, Side.AGGREGATOR) as log,
    ):
        notifier = Notifier.from_environment()
        shell = LeaderShell(config, log, store, notifier=notifier, checkpoint=checkpoint)
        _on_signals(shell.stop)
        with _served(shell.health, config.http):
            shell.run()


def run_helper(
    config: HelperConfig,
    *,
    after_restore: bool = False,
    say: Callable[[str], None] = _silent,
    checkpoint: Checkpoint = no_checkpoint,
) -> None:
    """Run the Helper until SIGTERM or SIGINT.

    Raises      what `HelperShell` raises; PrivilegeError
    """
    _prepare_socket(config)
    _prepare(config.user, 0o700, config.state_dir, config.fence_file.parent)
    if config.transport is not None:
        prepare_transport(config.transport, Side.AGGREGATOR)
    say(_become(config.user, umask=0o077).line)
    shell = HelperShell(
        config,
        after_restore=after_restore,
        notifier=Notifier.from_environment(),
        checkpoint=checkpoint,
    )
    _on_signals(shell.stop)
    with _served(shell.health, config.http):
        shell.run()


def run_witness(config: WitnessConfig, *, say: Callable[[str], None] = _silent) -> None:
    """Run a witness until SIGTERM or SIGINT.

    Raises      what `WitnessShell` raises; PrivilegeError
    """
    _prepare_socket(config)
    _prepare(config.user, 0o700, config.state_dir)
    say(_become(config.user, umask=0o077).line)
    shell = WitnessShell(config, notifier=Notifier.from_environment())
    _on_signals(shell.stop)
    with _served(shell.health, config.http):
        shell.run()


def _prepare_socket(config: HelperConfig | WitnessConfig) -> None:
    """Make the folder of a socket, if that is where the party listens."""
    if config.address.socket is not None:
        owner = config.user if os.geteuid() == 0 else None
        prepare_socket_folder(config.address.socket, owner, config.peer_group)


@contextmanager
def _served(health: Health, address: HttpAddress | None) -> Iterator[None]:
    """Serve health and metrics meanwhile, where the configuration says so.

    Raises      OSError when the port is taken
    """
    port = None if address is None else health.serve(address)
    try:
        yield
    finally:
        if port is not None:
            port.close()


def _prepare(user: str, mode: int, *folders: Path) -> None:
    """Make the party's own folders while root still can give them away."""
    root = os.geteuid() == 0
    if root:
        ensure_users()
    for folder in folders:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            folder.chmod(mode)
            if root:
                shutil.chown(folder, user, user)


def _become(user: str, *, umask: int) -> Dropped:
    """Give root up; files made from here on are the party's own."""
    os.umask(umask)
    return drop_to(user)


def _on_signals(stop: Callable[[], None]) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
