"""Packages that are an extra's: what to install where a command lacks one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ExtraPackage:
    """A package that is not installed with every program.

    name        as registries know it
    extras      that bring it, the smallest first
    """

    name: str
    extras: tuple[str, ...]


_PARTIES: Final = ("aggregator", "web")
PACKAGES: Final[Mapping[str, ExtraPackage]] = {
    "capstone": ExtraPackage("capstone", ("agent",)),
    "confluent_kafka": ExtraPackage("confluent-kafka", ("aggregator",)),
    "dp_accounting": ExtraPackage("dp-accounting", ("agent", "aggregator")),
    "duckdb": ExtraPackage("duckdb", _PARTIES),
    "fastapi": ExtraPackage("fastapi", ("web",)),
    "grpc": ExtraPackage("grpcio", ("aggregator",)),
    "ijson": ExtraPackage("ijson", ("agent", *_PARTIES, "training")),
    "jinja2": ExtraPackage("jinja2", ("agent", "web")),
    "jupyterlab": ExtraPackage("jupyterlab", ("notebook",)),
    "kafka": ExtraPackage("kafka-python", ("agent",)),
    "matplotlib": ExtraPackage("matplotlib", ("training", "simulator")),
    "opendp": ExtraPackage("opendp", ("simulator",)),
    "opentelemetry": ExtraPackage("opentelemetry-proto", ("agent",)),
    "pandas": ExtraPackage("pandas", _PARTIES),
    "prometheus_client": ExtraPackage("prometheus-client", ("agent", *_PARTIES)),
    "psutil": ExtraPackage("psutil", ("agent", "aggregator")),
    "psycopg": ExtraPackage("psycopg", ("witness-postgresql",)),
    "pyarrow": ExtraPackage("pyarrow", (*_PARTIES, "training")),
    "pynvml": ExtraPackage("nvidia-ml-py", ("agent",)),
    "pyspark": ExtraPackage("pyspark", ("spark",)),
    "scipy": ExtraPackage("scipy", (*_PARTIES, "training")),
    "simpy": ExtraPackage("simpy", ("simulator",)),
    "sklearn": ExtraPackage("scikit-learn", ("training",)),
    "starlette": ExtraPackage("starlette", ("agent",)),
    "urllib3": ExtraPackage("urllib3", ("agent", "aggregator", "web")),
    "uvicorn": ExtraPackage("uvicorn", ("agent", "web")),
}
"""The module that is imported -> its package; a test holds it to pyproject.toml."""


_EXTRA_OF: Final[Mapping[str, str]] = {
    "agent": "agent",
    "demo": "simulator",
    "diagnosis": "training",
    "experiment": "simulator",
    "fleet": "simulator",  # for a trial; what a party types needs no extra
    "simulate": "simulator",
    "stragglers": "training",
    "web": "web",
}
"""A command group -> the extra that brings all it needs, where that is not the package's first."""


def extra_with(module: str, group: str) -> tuple[str, str] | None:
    """Give the package of a module that is not here, and the extra to install for it.

    group       the command group that asked for it: its own extra is named where that has it
    Returns     None for a module that is no extra's
    """
    package = PACKAGES.get(module.partition(".")[0])
    if package is None:
        return None
    own = _EXTRA_OF.get(group, "")
    return package.name, own if own in (*package.extras, "simulator") else package.extras[0]
