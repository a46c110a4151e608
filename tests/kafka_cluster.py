"""Several brokers on loopback, each also a controller: what a cluster outlives can be tried out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from pointillist.broker.local import (
    BrokerOptions,
    ClusterMember,
    LocalBroker,
    RunningBroker,
    free_ports,
    jars,
    new_cluster_id,
)
from pointillist.broker.properties import Ports

_INTERNAL: Final = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")

_REPLICATED: Final = {
    **{f"{name}.replication.factor": "3" for name in _INTERNAL},
    **{f"{name}.min.isr": "2" for name in _INTERNAL[1:]},
}


class LocalCluster:
    """A new cluster of three in a folder; one broker may be away."""

    def __init__(self, folder: Path, options: BrokerOptions | None = None) -> None:
        numbers = free_ports(6)
        ports = [Ports(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
        voters = ",".join(f"{n}@{port.at(port.controller)}" for n, port in enumerate(ports, 1))
        common = _REPLICATED | {"controller.quorum.voters": voters}
        options, cluster_id = options or BrokerOptions(), new_cluster_id()
        self.brokers = [
            LocalBroker(
                folder / f"broker-{node}",
                replace(
                    options,
                    extra={**common, **options.extra, "node.id": str(node)},
                    member=ClusterMember(port, cluster_id),
                ),
            )
            for node, port in enumerate(ports, 1)
        ]
        self.bootstrap = tuple(port.at(port.plain) for port in ports)

    def start(self, say: Callable[[str], None] = lambda _line: None) -> list[RunningBroker]:
        """Start those that do not run, at once: none answers before most of them are there.

        Raises      BrokerError
        """
        jars(say)
        with ThreadPoolExecutor(len(self.brokers)) as starters:
            return list(starters.map(LocalBroker.start, self.brokers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it for good: without a majority a broker would wait in vain to leave in order."""
        for broker in self.brokers:
            if broker.status() is not None:
                broker.kill()
