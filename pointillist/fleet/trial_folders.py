"""Where a trial keeps what each party owns: a folder each, as on machines of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TrialFolders:
    """The folders and files of one trial, below an absolute base."""

    base: Path

    @property
    def settings(self) -> Path:
        return self.base / "trial.toml"

    @property
    def plan(self) -> Path:
        return self.leader / "plan.toml"

    @property
    def leader(self) -> Path:
        return self.base / "leader"

    @property
    def leader_toml(self) -> Path:
        return self.leader / "leader.toml"

    @property
    def leader_key(self) -> Path:
        return self.leader / "keys" / "leader" / "identity.key"

    @property
    def plans(self) -> Path:
        return self.leader / "plans.toml"

    @property
    def joins(self) -> Path:
        return self.leader / "joins"

    @property
    def task(self) -> Path:
        return self.leader / "trial.task"

    @property
    def roster(self) -> Path:
        return self.leader / "1.roster"

    @property
    def releases(self) -> Path:
        return self.leader / "releases" / "parquet"

    @property
    def helper(self) -> Path:
        return self.base / "helper"

    @property
    def helper_toml(self) -> Path:
        return self.helper / "helper.toml"

    @property
    def helper_key(self) -> Path:
        return self.helper / "keys" / "helper" / "identity.key"

    @property
    def operator(self) -> Path:
        return self.base / "operator"

    @property
    def simulated(self) -> Path:
        return self.base / "simulated"

    @property
    def log(self) -> Path:
        return self.base / "log"

    @property
    def logs(self) -> Path:
        """What each process says."""
        return self.base / "logs"

    @property
    def socket(self) -> Path:
        return self.base / "run" / "helper.sock"

    def host(self, name: str) -> Path:
        """The folder of a real host."""
        return self.base / "hosts" / name

    def agent_toml(self, name: str) -> Path:
        return self.host(name) / "agent.toml"

    def token(self, name: str) -> Path:
        return self.host(name) / "token"
