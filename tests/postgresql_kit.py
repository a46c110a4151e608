"""A PostgreSQL server of the tests' own: never the system's cluster, never its user's data."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

_OWNER = "postgres_owner"


def server_programs() -> Path | None:
    """The folder of initdb and postgres; Debian keeps it off PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path and shutil.which("postgres") else None


class PostgresqlServer:
    """One server in a folder of its own, on a Unix socket and, with TLS, on loopback.

    It refuses to run as root, so root runs it as nobody.
    """

    def __init__(self) -> None:
        programs = server_programs()
        assert programs is not None
        self._programs = programs
        # Short, for the socket's path, and open to the user that runs it.
        self.folder = Path(tempfile.mkdtemp(prefix="plst-pg-"))
        self._as: dict[str, object] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._settings: dict[str, str] = {}
        self._run("initdb", "-D", self._data, "-U", _OWNER, "-A", "trust", "--no-sync", "-N")

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def give(self, name: str, content: bytes, mode: int = 0o600) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        path.chmod(mode)
        if self._as:
            shutil.chown(path, "nobody")
        return path

    def serve_tls(self, cert: bytes, key: bytes, ca: bytes) -> None:
        """Take TLS on loopback from the next start on; the witness's role gives its password."""
        self.give("server.pem", cert)
        self.give("server.key", key)
        self.give("ca.pem", ca)
        self._settings |= {
            "ssl": "on",
            "ssl_cert_file": str(self.folder / "server.pem"),
            "ssl_key_file": str(self.folder / "server.key"),
            "ssl_ca_file": str(self.folder / "ca.pem"),
            "listen_addresses": "127.0.0.1",
        }
        rules = "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
        (self.folder / "data" / "pg_hba.conf").write_text(rules)

    def start(self, **settings: str) -> None:
        log = (self.folder / "log").open("ab")
        options = {
            "unix_socket_directories": str(self.folder),
            "listen_addresses": "",
            "port": str(self.port),
            "shared_buffers": "16MB",
        }
        options |= self._settings | settings
        command = [str(self._programs / "postgres"), "-D", self._data]
        command += [f"--{name}={value}" for name, value in options.items()]
        self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as)  # type: ignore[call-overload]
        log.close()
        for _ in range(600):
            if self.psql("SELECT 1", check=False) == "1":
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text()[-2000:])

    @property
    def runs(self) -> bool:
        return self._process is not None

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def freeze(self) -> None:
        """Have every process of it stand still: connections stay open and nobody answers."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        import psutil

        parent = psutil.Process(self._process.pid)
        for process in (parent, *parent.children()):
            process.send_signal(number)

    def psql(self, sql: str, *, database: str = "postgres", check: bool = True) -> str:
        """Run SQL as the server's owner; give what it says."""
        return self._run(
            *("psql", "-XqtA", "-v", "ON_ERROR_STOP=1", "-h", str(self.folder)),
            *("-p", str(self.port), "-U", _OWNER, "-d", database, "-f", "-"),
            text=sql,
            check=check,
        ).strip()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def _run(self, program: str, *arguments: str, text: str = "", check: bool = True) -> str:
        done = subprocess.run(  # type: ignore[call-overload]
            [str(self._programs / program), *arguments],
            input=text, capture_output=True, text=True, check=False, cwd=self.folder, **self._as,
        )  # fmt: skip
        assert done.returncode == 0 or not check, done.stderr
        return str(done.stdout)
