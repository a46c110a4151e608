"""What the parties say of themselves: presence, troubles, a status document, metrics.

Nothing in it names a host.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from aggregator.state.state_file import write_durably
from transport.process.supervision import Closing, MetricsServer

from .config import HttpAddress


class Trouble(StrEnum):
    """What keeps a party from its work; its name in logs, status and metrics.

    All but ROLLED_BACK, which ends the Helper, are waited out and left again.
    """

    LOG_AWAY = "log_away"
    HELPER_AWAY = "helper_away"
    WITNESS_AWAY = "witness_away"
    ROLLED_BACK = "rolled_back"
    STORAGE = "storage"
    CLOCK_STEPPED = "clock_stepped"


class Troubles:
    """What stands between a party and its work.

    standing    since when, unix seconds, and what was said of it
    """

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self.standing: dict[Trouble, tuple[float, str]] = {}

    def begin(self, trouble: Trouble, now_s: float, detail: str) -> None:
        """Note a trouble; one that stands already is not told again."""
        if trouble not in self.standing:
            self.standing[trouble] = now_s, detail
            self._log.warning("trouble", what=trouble.value, detail=detail)

    def end(self, trouble: Trouble, now_s: float) -> None:
        if trouble in self.standing:
            lasted_s = round(now_s - self.standing.pop(trouble)[0], 1)
            self._log.warning("trouble over", what=trouble.value, lasted_s=lasted_s)

    def document(self) -> dict[str, dict[str, object]]:
        return {
            trouble.value: {"since": int(since_s), "detail": detail}
            for trouble, (since_s, detail) in dict(self.standing).items()  # a call may add one
        }


class Presence(Closing):
    """A shared lock, which the kernel ends with the process, however it ends."""

    def __init__(self, status_file: Path) -> None:
        """Take it. Raises OSError."""
        path = _lock_file(status_file)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_SH)

    def close(self) -> None:
        os.close(self._handle)


def is_present(status_file: Path) -> bool:
    """Whether some process holds it. Raises PermissionError where the file is another user's."""
    try:
        handle = os.open(_lock_file(status_file), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)


def _lock_file(status_file: Path) -> Path:
    return status_file.with_name(status_file.name + ".lock")


STUCK_S: Final = 60.0
"""A loop that has not gone round for so long is stuck: its turns take less than a second, and what
is away is waited for elsewhere or for a moment."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HealthMetric:
    """One metric of a document.

    key     names its value in the document
    label   of a mapping's keys; empty for a single number
    of      makes the number, or the mapping from label to number, of the value
    """

    key: str
    name: str
    text: str
    label: str = ""
    counter: bool = False
    of: Callable[[Any], Any] = lambda value: value


def trouble_measure(*possible: Trouble) -> HealthMetric:
    return HealthMetric(
        "troubles",
        "trouble",
        "1 while the trouble stands",
        "trouble",
        of=lambda standing: {trouble.value: trouble.value in standing for trouble in possible},
    )


DISK_MEASURE: Final = HealthMetric(
    "disk_free", "disk_free_ratio", "free part of the file system that holds the folder", "folder"
)


def disk_free(folders: Mapping[str, Path]) -> dict[str, float]:
    """Give the free part, 0 .. 1, of the file systems of some folders, by what they are for.

    A folder that is not there yet, or cannot be asked, is left out.
    """
    found = {}
    for name, folder in folders.items():
        with suppress(OSError):
            room = os.statvfs(folder)
            found[name] = room.f_bavail / room.f_blocks if room.f_blocks else 0.0
    return found


class Health(Collector):
    """The newest document of a party, and when its loop last went round."""

    def __init__(self, party: str, measures: Iterable[HealthMetric]) -> None:
        """Say nothing yet; the party's name is part of every metric's."""
        self._party, self._measures = party, tuple(measures)
        self.document: Document = {}
        self._turned_s = time.monotonic()

    def turned(self) -> None:
        self._turned_s = time.monotonic()

    def stuck(self) -> str:
        standing_s = time.monotonic() - self._turned_s
        if standing_s > STUCK_S:
            return f"the loop has not gone round for {standing_s:.0f} s"
        return ""

    def not_ready(self) -> str:
        if not self.document:
            return "starting"
        # Details name files and users: they are for the status and the log, which are private.
        found = [
            f"{name} since {standing['since']}"
            for name, standing in self.document["troubles"].items()
        ]
        if not self.document["ready"] and not found:
            found = ["catching up with the log"]
        return "; ".join(found)

    # Over HTTP

    def serve(self, address: HttpAddress) -> MetricsServer:
        """Serve /healthz, /readyz and /metrics. Raises AddressUnavailable."""
        choose = f"port of [http] in {self._party}.toml, 0 for a free one"
        return MetricsServer(address.port, self.application(), choose, address.address)

    def application(self) -> WSGIApplication:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        metrics: WSGIApplication = make_wsgi_app(registry)
        checks: dict[str, Callable[[], str]] = {
            "/healthz": self.stuck,
            "/readyz": lambda: self.stuck() or self.not_ready(),
        }

        def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "")
            if path == "/metrics":
                return metrics(environ, start)
            check = checks.get(path)
            if check is None:
                return _text(start, "404 Not Found", "expected /healthz, /readyz or /metrics")
            why = check()
            return _text(start, "503 Service Unavailable" if why else "200 OK", why or "ok")

        return answer

    def collect(self) -> Iterator[Metric]:
        document = self.document
        for measure in self._measures if document else ():
            yield _family(f"pointillist_{self._party}_{measure.name}", measure, document)


def _family(name: str, measure: HealthMetric, document: Document) -> Metric:
    make = CounterMetricFamily if measure.counter else GaugeMetricFamily
    value = measure.of(document[measure.key])
    if not measure.label:
        return make(name, measure.text, value=float(value))
    family = make(name, measure.text, labels=[measure.label])
    for key, number in sorted(value.items()):
        family.add_metric([str(key)], float(number))
    return family


def _text(start: StartResponse, status: str, body: str) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{body}\n".encode()]


STATUS_EVERY_S: Final = 2.0


def process_document(started_s: float, now_s: float) -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "version": version("pointillist"),
        "started": int(started_s),
        "time": int(now_s),
    }


def write_status(path: Path, status: Mapping[str, object]) -> None:
    """Replace the status file; readable by the party's own user alone."""
    write_durably(path, json.dumps(status, sort_keys=True).encode() + b"\n")


def read_status(path: Path) -> dict[str, Any]:
    """Read what a running or stopped party last said about itself. Raises OSError, ValueError."""
    status = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(status, dict):
        raise ValueError(f"{path}: expected a status document, got {type(status).__name__}")
    return status
