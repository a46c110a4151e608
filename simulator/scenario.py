"""What is simulated: one readable TOML file, checked key by key; keys: docs/scenario-file.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from transport.settings.config import build, did_you_mean, limited, read_tree

YEAR_S: Final = 31_536_000
MOST_ITEMS: Final = 1024
NAME: Final = "[a-z0-9][a-z0-9_-]{0,63}"
FIDELITIES: Final = ("auto", "exact", "masked", "noise")

FORMAT: Final = 1


class ScenarioError(ValueError):
    """A scenario breaks a rule: names the file, the key, what was expected and what came."""


def unix_time(got: Any) -> int:
    if not isinstance(got, datetime) or got.tzinfo is None:
        raise ValueError(f"expected a time with its zone (2026-01-05T00:00:00Z), got {got!r}")
    return int(got.timestamp())


def within(default: Any, low: float, high: float) -> Any:
    """Declare a number with its bounds, both included; a default of None makes it required."""
    return limited(**({} if default is None else {"default": default}), low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A kind of host: its GPU model (a class of the catalogue), GPUs and share of the hosts."""

    gpu_model: str
    gpus: int = within(8, 1, 16)
    share: float = within(1.0, 1e-6, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLoad:
    """How busy the fleet is."""

    busy_share: float = within(0.75, 0.0, 0.98)
    diurnal_amplitude: float = within(0.15, 0.0, 1.0)
    peak_hour_utc: float = within(15.0, 0.0, 24.0)
    weekend_drop: float = within(0.10, 0.0, 1.0)
    straggler_share: float = within(0.01, 0.0, 0.5)
    straggler_speed: float = within(0.9, 0.1, 1.0)
    speed_spread: float = within(0.01, 0.0, 0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """What is submitted; sizes and durations are of a published cluster (fleet/published.toml)."""

    sizes: str = "kalos"
    durations: str = "alibaba_2023"
    largest_gpus: int = within(4096, 1, 1 << 20)
    elastic_share: float = within(0.1, 0.0, 1.0)
    growth_minutes: float = within(30.0, 1.0, 1440.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashCrowd:
    """A new application: nobody runs it, then share of all new jobs do, by ramp_hours later."""

    application: str = ""
    begin_hours: float = within(0.0, 0.0, 8760.0)
    ramp_hours: float = within(6.0, 0.0, 8760.0)
    share: float = within(0.3, 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applications:
    """What the jobs run; numbered ones are variants, all of them."""

    shares: Mapping[str, float] = field(default_factory=dict, metadata={"low": 0})
    numbered: int = within(0, 0, 250)
    flash_crowd: FlashCrowd = FlashCrowd()


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What breaks; 6.5 and 2.34 faults per 1,000 node days are published (RSC-1 and RSC-2)."""

    per_1000_node_days: float = within(6.5, 0.0, 1000.0)
    lemon_share: float = within(0.0, 0.0, 1.0)
    lemon_faults_per_day: float = within(1.6, 0.0, 1000.0)
    lemon_quarantine_faults: int = within(0, 0, 1000)
    repair_hours: float = within(2.0, 0.0, 8760.0)
    incidents_scale: float = within(1.0, 0.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailSlow:
    """Episodes in which a job runs slowly without failing; a slowdown of 1.34 is published."""

    enabled: bool = True
    slowdown: float = within(1.34, 1.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrades:
    """Agents are upgraded in waves: a host is silent for down_minutes, its jobs go on."""

    every_hours: float = within(0.0, 0.0, 8760.0)
    wave_share: float = within(0.05, 1e-4, 1.0)
    wave_minutes: float = within(30.0, 1.0, 10_080.0)
    down_minutes: float = within(5.0, 0.0, 1440.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout:
    """Reports that do not come: hosts silent in a window, and reports that come too late."""

    share: float = within(0.02, 0.0, 0.9)
    late_share: float = within(0.005, 0.0, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adversaries:
    """Who does not follow the protocol."""

    lying_share: float = within(0.0, 0.0, 0.5)
    lies: tuple[str, ...] = limited(
        (), choices=("out_of_range", "replay", "forged_id", "poisoned_share")
    )
    leader: tuple[str, ...] = limited(
        (), choices=("drop_hosts", "alter_share", "replay_batch", "split_batch")
    )
    helper_lost_share: float = within(0.0, 0.0, 1.0)
    duplicate_share: float = within(0.0, 0.0, 1.0)
    reorder_share: float = within(0.0, 0.0, 1.0)
    clock_skew_s: float = within(0.0, 0.0, 86_400.0)
    mass_restart_hour: float = within(-1.0, -1.0, 8760.0)
    guesser_hosts: int = within(0, 0, 1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulated fleet over one stretch of time: windows start at Unix time start_s."""

    name: str = limited(form=NAME)
    about: str = ""
    seed: int = within(1, 0, (1 << 63) - 1)
    hosts: int = within(None, 1, 1_000_000)
    start_s: int = limited(1_770_854_400, key="start", low=0, high=1 << 40, read=unix_time)
    duration_s: int = within(None, 1, YEAR_S)
    step_s: int = within(60, 1, 86_400)
    plan: str = "default"
    fidelity: str = limited("auto", choices=FIDELITIES)
    operators: tuple[float, ...] = limited((4.0, 3.0, 2.0, 1.0), fewest=1, most=MOST_ITEMS)
    shapes: tuple[Shape, ...] = limited(
        (Shape(gpu_model="H100"),), key="shape", fewest=1, most=MOST_ITEMS
    )
    load: FleetLoad = FleetLoad()
    jobs: Jobs = Jobs()
    applications: Applications = Applications()
    faults: Faults = Faults()
    fail_slow: FailSlow = FailSlow()
    upgrades: Upgrades = Upgrades()
    dropout: Dropout = Dropout()
    adversaries: Adversaries = Adversaries()

    @property
    def gpus(self) -> int:
        """GPUs of the fleet, from the shares of its shapes (the inventory has them exactly)."""
        whole = sum(shape.share for shape in self.shapes)
        return round(self.hosts * sum(s.share * s.gpus for s in self.shapes) / whole)

    @property
    def end_s(self) -> int:
        return self.start_s + self.duration_s

    @property
    def hours(self) -> float:
        return round(self.duration_s / 3600, 4)

    def scaled(self, *, hosts: int) -> Self:
        return replace(self, hosts=hosts)

    def with_(self, **changes: Any) -> Self:
        return replace(self, **changes)


FOLDER: Final = Path(__file__).with_name("scenarios")


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def path_of(scenario: str | Path) -> Path:
    """Give the file of a shipped scenario by its name, or of a path. Raises ScenarioError."""
    if isinstance(scenario, Path) or "/" in scenario or scenario.endswith(".toml"):
        return Path(scenario)
    if scenario in names():
        return FOLDER / f"{scenario}.toml"
    if Path(scenario).is_file():
        return Path(scenario)
    raise ScenarioError(
        f"expected a file or one of {', '.join(names())}, got {scenario!r}"
        f"{did_you_mean(scenario, names())}"
    )


def load(scenario: str | Path) -> Scenario:
    """Read a scenario: a shipped one by its name, or a file. Raises ScenarioError."""
    path = path_of(scenario)
    read = read_tree(Scenario, path, error=ScenarioError, file_format=FORMAT)
    return _checked(read, f"{path}: ")


def parse(content: Mapping[str, Any]) -> Scenario:
    return _checked(build(Scenario, content, error=ScenarioError, file_format=FORMAT))


def _checked(scenario: Scenario, where: str = "") -> Scenario:
    if scenario.start_s % scenario.step_s:
        raise ScenarioError(
            f"{where}start: expected a multiple of step_s = {scenario.step_s}, "
            f"got {scenario.start_s}"
        )
    if min(scenario.operators) <= 0:
        raise ScenarioError(
            f"{where}operators: expected shares above 0, got {list(scenario.operators)}"
        )
    return scenario
