"""The price list: what a GPU hour costs, and how many hours a counted host is taken to lose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from transport.settings.config import ConfigError, limited, read_tree
from wire.catalogue import Catalogue

OTHERWISE: Final = "otherwise"
FORMAT: Final = 1
_MOST_PRICE: Final = 1e6
_MOST_HOURS: Final = 8 * 168.0


class PriceListError(ConfigError):
    """A price list that cannot be used; says the file, the key, what was expected and what came."""


def _number(got: Any, most: float) -> float:
    if isinstance(got, bool) or not isinstance(got, int | float) or not 0 <= got <= most:
        raise ValueError(f"expected a number from 0 to {most:g}, got {got!r}")
    return float(got)


def _price(got: Any) -> float:
    return _number(got, _MOST_PRICE)


def _hours(got: Any) -> float:
    return _number(got, _MOST_HOURS)


@dataclass(frozen=True, slots=True)
class HoursLost:
    """Assumed hours by cause, for each section that counts causes.

    A cause that is not named has what `otherwise` says; without it 0.
    """

    incidents: Mapping[str, float] = field(default_factory=dict, metadata={"read": _hours})
    hardware_faults: Mapping[str, float] = field(default_factory=dict, metadata={"read": _hours})

    def of(self, section: str, cause: str) -> float:
        """Hours that a host is lost which was counted under a cause."""
        hours: Mapping[str, float] = getattr(self, section)
        return hours.get(cause, hours.get(OTHERWISE, 0.0))


@dataclass(frozen=True, slots=True)
class PriceList:
    """A price list.

    currency        three letters, for people
    gpu_hour        model -> price of one GPU for an hour
    otherwise       price where the model is not known
    gpus_per_host   where the releases do not tell
    """

    currency: str = limited(form="[A-Z]{3}")
    gpus_per_host: float = limited(low=1, high=1024)
    otherwise: float = limited(low=0, high=_MOST_PRICE)
    gpu_hour: Mapping[str, float] = field(default_factory=dict, metadata={"read": _price})
    hours_lost: HoursLost = field(default_factory=HoursLost)

    def __post_init__(self) -> None:
        catalogue = Catalogue.load()
        _refuse_strangers("gpu_hour", self.gpu_hour, set(catalogue.classes("gpu_model")))
        for section, axis in (("incidents", "incident"), ("hardware_faults", "hardware_fault")):
            known = {*catalogue.classes(axis), OTHERWISE}
            _refuse_strangers(f"hours_lost.{section}", getattr(self.hours_lost, section), known)

    def price(self, gpus: Mapping[str, float]) -> float:
        """Mean price of a GPU hour of a fleet.

        gpus    model -> GPUs, or any amounts in their proportion; empty: not known
        """
        total = sum(gpus.values())
        if total <= 0:
            return self.otherwise
        each = (self.gpu_hour.get(model, self.otherwise) * count for model, count in gpus.items())
        return sum(each) / total


def _refuse_strangers(key: str, found: Mapping[str, float], known: set[str]) -> None:
    strangers = sorted(set(found) - known)
    if strangers:
        names = ", ".join(sorted(known))
        raise ValueError(f"{key}: expected names of the catalogue ({names}), got {strangers[0]!r}")


def load_prices(path: Path | None = None) -> PriceList:
    """Read a price list; None: the shipped one.

    Raises      PriceListError
    """
    shipped = Path(__file__).with_name("prices.toml")
    return read_tree(PriceList, path or shipped, error=PriceListError, file_format=FORMAT)
