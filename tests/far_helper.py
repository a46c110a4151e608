"""A Helper of `ProcessFleet` that listens on TCP with TLS, wherever it is run.

python -m tests.far_helper FOLDER LEADER_PK HOST:PORT TLS_FOLDER
"""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path

from aggregator.helper.helper_runtime import HelperRuntime
from aggregator.party.channel_address import ChannelAddress, TlsFiles
from tests.process_kit import FileClock, helper_config


def tls_address(host_port: str, tls: Path, name: str) -> ChannelAddress:
    """Where the Helper listens, for one side of the channel."""
    files = TlsFiles(tls / "ca.pem", tls / f"{name}.pem", tls / f"{name}.key")
    return ChannelAddress(None, host_port, files, call_timeout_s=2)


def main() -> None:
    folder, leader_pk, host_port, tls = sys.argv[1:]
    config = replace(
        helper_config(Path(folder), bytes.fromhex(leader_pk)),
        address=tls_address(host_port, Path(tls), "helper"),
    )
    shell = HelperRuntime(config, clock=FileClock(Path(folder)))
    signal.signal(signal.SIGTERM, lambda *_: shell.stop())
    shell.run()


if __name__ == "__main__":
    main()
