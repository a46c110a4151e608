"""Workers of a Helper are held against the witnesses that a Helper without them is."""

from __future__ import annotations

from tests.aggregator.witness.conftest import postgresql_server, stand

__all__ = ["postgresql_server", "stand"]
