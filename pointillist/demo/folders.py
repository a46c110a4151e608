"""Where a demo run keeps what each process owns: nobody reads another's keys, even in a demo."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from transport.files.ownership import give
from transport.opening import EmbeddedSettings, Side, open_transport
from transport.process.privileges import (
    AGENT_USER,
    HELPER_USER,
    LEADER_USER,
    LOG_GROUP,
    ensure_users,
)


@dataclass(frozen=True, slots=True)
class RunFolders:
    """The folders of one run, under one throw-away base.

    several_users   true for root: each role then runs as a user of its own
    embedded        whether the log is a file of this run; else a broker has it
    """

    base: Path
    several_users: bool
    embedded: bool = True

    @classmethod
    def make(cls, *, embedded: bool = True) -> Self:
        """Create the base and every role's folders.

        Raises      OSError, PrivilegeError, TransportUnavailable
        """
        several = ensure_users()
        folders = cls(Path(tempfile.mkdtemp(prefix="pointillist-demo-")), several, embedded)
        folders.base.chmod(0o711)
        for folder in (folders.leader, folders.helper, folders.agents):
            folder.mkdir(mode=0o700)
        for folder in (folders.releases, folders.truth, folders.signed, folders.logs):
            folder.mkdir()
            folder.chmod(0o755)  # whatever this process's umask would close
        if embedded:
            open_transport(EmbeddedSettings(folders.log, folders.log_group), Side.AGENT).close()
        return folders

    @property
    def leader(self) -> Path:
        return self.base / "leader"

    @property
    def helper(self) -> Path:
        return self.base / "helper"

    @property
    def agents(self) -> Path:
        return self.base / "agents"

    @property
    def releases(self) -> Path:
        return self.base / "releases"

    @property
    def truth(self) -> Path:
        return self.base / "truth"

    @property
    def signed(self) -> Path:
        return self.base / "signed"

    @property
    def logs(self) -> Path:
        return self.base / "logs"

    @property
    def log(self) -> Path:
        return self.base / "log"

    @property
    def kafka(self) -> Path:
        return self.base / "kafka"

    @property
    def socket(self) -> Path:
        return self.base / "socket" / "helper.sock"

    @property
    def log_group(self) -> str | None:
        return LOG_GROUP if self.several_users else None

    def hand_over(self) -> None:
        """Give each role its own folders; call it once everything in them is written."""
        if not self.several_users:
            return
        owners = {
            LEADER_USER: (self.leader, self.releases),
            HELPER_USER: (self.helper,),
            AGENT_USER: (self.agents, self.truth),
        }
        for user, folders in owners.items():
            for folder in folders:
                for path in (folder, *folder.rglob("*")):
                    give(path, user, user)

    def remove(self) -> None:
        """Delete everything, keys first of all."""
        shutil.rmtree(self.base, ignore_errors=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read."""
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)


def write_public(path: Path, content: bytes) -> None:
    """Write a file that every role may read, whole or not at all."""
    draft = path.with_name(f".{path.name}.partial")
    draft.write_bytes(content)
    draft.chmod(0o644)
    draft.replace(path)
