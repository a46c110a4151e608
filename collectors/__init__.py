"""Sources of measurements, all behind one protocol."""

from .port import Absence, Source, SourceFactory, SourceRegistry, SourceUnavailable
from .records.activity import Record

__all__ = ["Absence", "Record", "Source", "SourceFactory", "SourceRegistry", "SourceUnavailable"]
