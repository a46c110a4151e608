"""A cluster of brokers, for the faults that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pointillist.broker.local import BrokerOptions
from tests.kafka_cluster import LocalCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", options=BrokerOptions(heap_mib=256)) as made:
        made.start(print)
        yield made
