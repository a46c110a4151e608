"""Processes in a made-up /proc, and a collector that takes OTLP by the official messages.

`python -m tests.export_kit PORT FILE` is that collector as a process, which a test can kill.
"""

from __future__ import annotations

import base64
import gzip
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.certificate_kit import certificate

JOB, POD = "778", "8b0f1c2d-4e5f-6071-8293-a4b5c6d7e8f9"
CONTAINER = "3f4a" * 16
IN_JOB = f"0::/system.slice/slurmstepd.scope/job_{JOB}/step_0/user/task_0"
IN_POD = (
    f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
)
S = 1_000_000_000

Series = tuple[str, frozenset[tuple[str, str]]]


class MadeProc:
    def __init__(self, folder: Path) -> None:
        self.path = folder
        folder.mkdir()

    def add(self, pid: int, cgroups: str, environment: bytes = b"") -> None:
        """Put a process there, started 10 ms times its number after the boot."""
        place = self.path / str(pid)
        place.mkdir()
        (place / "comm").write_text("python3\n")
        (place / "stat").write_text(f"{pid} (python3) S {'0 ' * 18}{pid} 0 0")
        (place / "cgroup").write_text(cgroups + "\n")
        (place / "environ").write_bytes(environment)


class Collector:
    """What was taken, and how the next requests are answered."""

    def __init__(self) -> None:
        self.taken: list[ExportMetricsServiceRequest] = []
        self.headers: list[Mapping[str, str]] = []
        self.asked = 0
        self.answers: list[tuple[int, Mapping[str, str]]] = []
        self.left_out = 0
        self.hold = threading.Event()
        """While it is clear nobody gets an answer."""
        self.hold.set()

    def series(self, place: int = -1) -> dict[Series, float]:
        return series_of(self.taken[place])


def series_of(request: ExportMetricsServiceRequest) -> dict[Series, float]:
    found: dict[Series, float] = {}
    for whole in request.resource_metrics:
        for scope in whole.scope_metrics:
            for metric in scope.metrics:
                of = metric.gauge if metric.HasField("gauge") else metric.sum
                for point in of.data_points:
                    labels = frozenset((a.key, a.value.string_value) for a in point.attributes)
                    value = point.as_int if point.HasField("as_int") else point.as_double
                    assert (metric.name, labels) not in found
                    found[metric.name, labels] = value
    return found


@contextmanager
def collector(port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[tuple[Collector, str]]:
    """Run one in a thread; gives it with its address."""
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.asked += 1
            made.hold.wait(60)
            status, headers = made.answers.pop(0) if made.answers else (200, {})
            if status == 200:
                assert self.path == "/v1/metrics"
                made.headers.append({k.lower(): v for k, v in self.headers.items()})
                made.taken.append(ExportMetricsServiceRequest.FromString(gzip.decompress(body)))
            answer = ExportMetricsServiceResponse()
            answer.partial_success.rejected_data_points = made.left_out
            text = answer.SerializeToString() if status == 200 else b"no"
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield made, f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        made.hold.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def tls_collector(folder: Path) -> Iterator[tuple[Collector, str, Path]]:
    """Run one behind a certificate that is its own authority; gives that, too."""
    files = certificate(folder, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    with collector(tls=context) as (made, address):
        yield made, address, files[0]


def read_taken(file: Path) -> list[ExportMetricsServiceRequest]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [ExportMetricsServiceRequest.FromString(base64.b64decode(line)) for line in lines]


def _serve(port: int, file: Path) -> None:
    with collector(port) as (made, address):
        written = 0
        print(address, flush=True)
        while True:
            for request in made.taken[written:]:
                line = base64.b64encode(request.SerializeToString()).decode()
                with file.open("a", encoding="utf-8") as out:
                    out.write(line + "\n")
                written += 1
            time.sleep(0.01)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]))
