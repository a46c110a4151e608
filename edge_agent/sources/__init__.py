"""Sources of measurements, all behind one protocol."""

from edge_agent.activity import Record

from .port import Absence, Source, SourceFactory, SourceRegistry, SourceUnavailable

__all__ = ["Absence", "Record", "Source", "SourceFactory", "SourceRegistry", "SourceUnavailable"]
