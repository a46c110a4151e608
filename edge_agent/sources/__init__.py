"""Sources of measurements, all behind one protocol."""

from .port import Absence, Record, Source, SourceFactory, SourceRegistry, SourceUnavailable

__all__ = ["Absence", "Record", "Source", "SourceFactory", "SourceRegistry", "SourceUnavailable"]
