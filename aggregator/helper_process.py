"""Start a Helper as a process: privileges first, then keys, then work until a signal."""

from __future__ import annotations

from collections.abc import Callable

from aggregator.helper.helper_runtime import HelperRuntime
from aggregator.party.config import HelperConfig
from aggregator.party.party_start import (
    become,
    health_served,
    on_signals,
    prepare_folders,
    prepare_socket,
    silent,
)
from aggregator.protocol.interfaces import Checkpoint, no_checkpoint
from transport.factory import Side, prepare_transport
from transport.process.supervision import Notifier


def run_helper(
    config: HelperConfig,
    *,
    after_restore: bool = False,
    say: Callable[[str], None] = silent,
    checkpoint: Checkpoint = no_checkpoint,
) -> None:
    """Run the Helper until SIGTERM or SIGINT.

    Raises      what `HelperRuntime` raises; PrivilegeError
    """
    prepare_socket(config.user, config.address, config.peer_group)
    prepare_folders(config.user, 0o700, config.state_dir, config.fence_file.parent)
    if config.transport is not None:
        prepare_transport(config.transport, Side.AGGREGATOR)
    say(become(config.user, config.state_dir, umask=0o077).line)
    runtime = HelperRuntime(
        config,
        after_restore=after_restore,
        notifier=Notifier.from_environment(),
        checkpoint=checkpoint,
    )
    on_signals(runtime.stop)
    with health_served(runtime.health, config.http):
        runtime.run()
