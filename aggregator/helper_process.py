"""Start a Helper as a process: privileges first, then keys, then work until a signal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aggregator.helper.helper_shell import HelperShell
from aggregator.helper.helper_state import HelperState
from aggregator.party.party_config import HelperConfig
from aggregator.party.party_start import (
    become,
    health_served,
    on_signals,
    prepare_folders,
    prepare_socket,
    silent,
)
from aggregator.protocol.checkpoints import Checkpoint, no_checkpoint
from aggregator.protocol.directory import PinnedParties
from aggregator.workers.children import ForkServer
from aggregator.workers.mask_pool import MaskPool
from aggregator.workers.mask_worker import MaskJob
from transport.opening import Side, prepare_transport
from transport.process.supervision import Notifier


def run_helper(
    config: HelperConfig,
    *,
    after_restore: bool = False,
    workers: int | None = None,
    say: Callable[[str], None] = silent,
    checkpoint: Checkpoint = no_checkpoint,
) -> None:
    """Run the Helper until SIGTERM or SIGINT.

    workers     processes that hold epochs and make masks; None: it does so itself

    Raises      what `HelperShell` raises; PrivilegeError
    """
    prepare_socket(config.user, config.address, config.peer_group)
    prepare_folders(config.user, 0o700, config.state_dir, config.fence_file.parent)
    if config.transport is not None:
        prepare_transport(config.transport, Side.AGGREGATOR)
    say(become(config.user, umask=0o077).line)
    fork_server = None if workers is None else ForkServer()
    shell = HelperShell(
        config,
        after_restore=after_restore,
        notifier=Notifier.from_environment(),
        checkpoint=checkpoint,
        mask_maker=mask_pool_of(fork_server, workers, config.key_dir),
    )
    on_signals(shell.stop)
    with health_served(shell.health, config.http):
        shell.run()
    if fork_server is not None:
        fork_server.close()


def mask_pool_of(
    fork_server: ForkServer | None, workers: int | None, key_dir: Path
) -> Callable[[PinnedParties, HelperState], MaskPool] | None:
    """What makes a Helper's workers; None where it has none."""
    if fork_server is None or workers is None:
        return None
    return lambda parties, state: MaskPool(fork_server, workers, MaskJob(parties, key_dir), state)
