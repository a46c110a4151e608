"""What the simulated fleet runs: how many of its programs were recorded on a GPU."""

from __future__ import annotations

from bench.parts import Parts
from bench.record import Figure
from simulator.applications.table import load_applications, real_application_profiles


def measure(_kept: Parts) -> list[Figure]:
    """Count the packaged tables: recordings, and all of them with the variants by rule."""
    applications = load_applications()
    classes = {one.workload.application for one in applications}
    return [
        Figure("real_application_profiles", real_application_profiles(applications), "recordings"),
        Figure("application_tables", len(applications), "recordings and variants"),
        Figure("application_classes", len(classes), "classes of the catalogue"),
    ]
