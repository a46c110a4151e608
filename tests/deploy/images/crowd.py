"""Hosts that fill a cohort: agents as threads of one process, in a container of the agent's image.

python3 crowd.py FOLDER HOSTS        FOLDER has agent.toml and the hosts' tokens, host-N.token

Each is the production agent with the operating system's noise, over a real log. Their machines are
made up, as one machine may stand on a roster once.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from pathlib import Path

from edge_agent.config import AgentConfig, load_config
from edge_agent.ledger.machine_lock import MachineLock
from edge_agent.membership import gpu_counts, join_request, send_join
from edge_agent.open_agent import load_host, open_agent, this_machine
from privacy.signing import SigningKey
from transport.factory import Side, open_transport
from transport.files.keyfiles import HostKey, write_host_key
from transport.files.private_files import read_token
from wire.catalogue import Catalogue


def config_of(folder: Path, number: int) -> AgentConfig:
    config = load_config(folder / "agent.toml")
    own = Path("/var/lib/pointillist") / f"host-{number}"
    own.mkdir(parents=True)
    host = dataclasses.replace(config.host, key_file=own / "key", state_dir=own / "state")
    return dataclasses.replace(config, host=host)


def join(config: AgentConfig, token: Path, machine: str) -> None:
    write_host_key(config.host.key_file, HostKey(SigningKey.generate(), this_machine(config)))
    host = load_host(config, this_machine(config))
    models = gpu_counts(Catalogue.load(), config.host.gpus)
    request = join_request(host, [machine], read_token(token), models)
    with open_transport(config.transport.settings, Side.AGENT) as log:
        send_join(log, request, config.trust, int(time.time()))


def live(config: AgentConfig) -> None:
    MachineLock.take = lambda _self: None  # type: ignore[assignment, method-assign]
    shell, _absent = open_agent(config)
    shell.run()


def main() -> None:
    folder, hosts = Path(sys.argv[1]), int(sys.argv[2])
    configs = [config_of(folder, number) for number in range(hosts)]
    for number, config in enumerate(configs):
        join(config, folder / f"host-{number}.token", f"machine-{number}")
    print("joined", flush=True)
    threads = [threading.Thread(target=live, args=(config,)) for config in configs]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
