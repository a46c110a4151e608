"""Incidents and faults as hosts, GPU hours lost and money.

A release tells how many hosts had a cause in a window, not how long: the hours are the price
list's, scale value and error alike, and no interval holds their own error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from aggregator.releases.cause_files import CAUSE_MEANINGS
from aggregator.releases.release_files import Q_VALUE
from aggregator.releases.releases import Meanings
from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE
from aggregator.statistics.ratios import normal_quantile
from transport.settings.config import ConfigError, limited, read_tree
from wire.catalogue import Catalogue

OTHERWISE: Final = "otherwise"
FORMAT: Final = 1
_MOST_PRICE: Final = 1e6
_MOST_HOURS: Final = 8 * 168.0


class PriceListError(ConfigError):
    """A price list that cannot be used; says the file, the key, what was expected and what came."""


def _number(got: Any, *, most: float) -> float:
    if isinstance(got, bool) or not isinstance(got, int | float) or not 0 <= got <= most:
        raise ValueError(f"expected a number from 0 to {most:g}, got {got!r}")
    return float(got)


def _numbers(most: float) -> Any:
    """Declare a table of numbers by name."""
    return field(default_factory=dict, metadata={"read": partial(_number, most=most)})


@dataclass(frozen=True, slots=True)
class HoursLost:
    """Assumed hours by cause; one that is not named has what `otherwise` says, else 0."""

    incidents: Mapping[str, float] = _numbers(_MOST_HOURS)
    hardware_faults: Mapping[str, float] = _numbers(_MOST_HOURS)

    def of(self, section: str, cause: str) -> float:
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
    gpu_hour: Mapping[str, float] = _numbers(_MOST_PRICE)
    hours_lost: HoursLost = field(default_factory=HoursLost)

    def __post_init__(self) -> None:
        catalogue = Catalogue.load()
        _refuse_strangers("gpu_hour", self.gpu_hour, set(catalogue.classes("gpu_model")))
        for section, axis in (("incidents", "incident"), ("hardware_faults", "hardware_fault")):
            known = {*catalogue.classes(axis), OTHERWISE}
            _refuse_strangers(f"hours_lost.{section}", getattr(self.hours_lost, section), known)

    def price(self, gpus: Mapping[str, float]) -> float:
        """Mean price of a fleet's GPU hour, by model -> GPUs or amounts in their proportion."""
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
    """Read a price list; None: the shipped one. Raises PriceListError."""
    shipped = Path(__file__).with_name("prices.toml")
    return read_tree(PriceList, path or shipped, error=PriceListError, file_format=FORMAT)


ALL: Final = "all causes"  # the row of a table's sum

_OF_CAUSES: Final = (
    "window_start", "window_s", "series", "cohort", "section", "n_hosts", "corrected", "cause",
    "component", "hosts", "standard_error", "low", "high", "bias_bound",
)  # fmt: skip

COST_MEANINGS: Final[Meanings] = {
    **{name: CAUSE_MEANINGS[name] for name in _OF_CAUSES},
    "hours_lost": (pa.float64(), "hours that such a host is lost: assumed, from the price list"),
    "gpus_per_host": (pa.float64(), "GPUs of a host, mean: of the roster, else the price list's"),
    "gpu_hours": (pa.float64(), "hosts x gpus_per_host x hours_lost"),
    "gpu_hours_low": (pa.float64(), "lower end of its 95 % interval, of the hosts alone"),
    "gpu_hours_high": (pa.float64(), "upper end of that interval"),
    "price": (pa.float64(), "of a GPU hour, mean over the fleet's models, in currency"),
    "currency": (pa.string(), "currency of price and cost"),
    "cost": (pa.float64(), "gpu_hours x price"),
    "cost_low": (pa.float64(), "lower end of its 95 % interval, of the hosts alone"),
    "cost_high": (pa.float64(), "upper end of that interval"),
    "cost_bias_bound": (
        pa.float64(),
        "what cost may lack because hosts left causes out, at most, beyond the interval",
    ),
    **Q_VALUE,
    "told": (pa.bool_(), "whether it is told from zero; of all causes, whether low is above zero"),
    **{name: CAUSE_MEANINGS[name] for name in ("trend", "change", "change_low", "change_high")},
}
"""Column -> Arrow type and meaning of the view `costs`, in order."""

COST_COLUMNS: Final = tuple(COST_MEANINGS)

_TABLE: Final = ["window_start", "window_s", "series", "cohort", "section"]


@dataclass(frozen=True, slots=True)
class FleetGpus:
    """What releases tell of a fleet's GPUs; both exactly, from the roster.

    per_host    GPUs of an accepted host, mean; None: not told
    by_model    model -> GPU seconds of the accepted hosts; empty: not told
    """

    per_host: float | None
    by_model: Mapping[str, float]


def fleet_gpus(mix: pd.DataFrame, by_model: pd.DataFrame) -> FleetGpus:
    """Read GPUs off cells of `kernel_mix` and `kernel_mix_by_model`."""
    holes = mix[(mix["cell"] == "unmeasured") & mix["whole"].notna()]
    seconds = float(holes["host_s"].sum())
    per_host = float(holes["whole"].sum()) / seconds if seconds > 0 else None
    parts = by_model[by_model["cell"].str.endswith("/unmeasured") & by_model["whole"].notna()]
    walls = parts.groupby(parts["cell"].str.split("/").str[0])["whole"].sum()
    return FleetGpus(per_host, {str(model): float(wall) for model, wall in walls.items()})


def costs(causes: pd.DataFrame, prices: PriceList, gpus: FleetGpus) -> pd.DataFrame:
    """Give each cause of root-cause tables its GPU hours and money, and each table its sum.

    causes      rows of the view `causes`
    Returns     COST_COLUMNS; hosts, GPU hours and money each with the 95 % interval of the hosts,
                which covers what is released and not what is assumed: `hours_lost`, the prices, and
                that struck hosts are like the others. `cost_bias_bound` is what may lack beyond it
    """
    hours = [
        prices.hours_lost.of(section, cause)
        for section, cause in zip(causes["section"], causes["cause"], strict=True)
    ]
    rows = causes.assign(hours_lost=np.array(hours, dtype=float))
    rows = rows.astype({"bias_bound": float, "corrected": bool})
    rows["told"] = rows["q_value"] <= FALSE_DISCOVERY_RATE
    sums = [_summed(table) for _, table in rows.groupby(_TABLE, dropna=False)]
    rows = pd.concat([rows, *sums], ignore_index=True)
    return _priced(rows, prices, gpus)


def _priced(rows: pd.DataFrame, prices: PriceList, gpus: FleetGpus) -> pd.DataFrame:
    per_host = prices.gpus_per_host if gpus.per_host is None else gpus.per_host
    price = prices.price(gpus.by_model)
    rows = rows.assign(gpus_per_host=per_host, price=price, currency=prices.currency)
    whole = rows["cause"] == ALL
    # A sum over causes is weighted by their hours already.
    hours = rows["hours_lost"].where(~whole, 1.0) * per_host
    for name, source in (("", "hosts"), ("_low", "low"), ("_high", "high")):
        rows[f"gpu_hours{name}"] = rows[source] * hours
        rows[f"cost{name}"] = rows[f"gpu_hours{name}"] * price
    rows["cost_bias_bound"] = rows["bias_bound"] * hours * price
    # What is weighted is no number of hosts any more.
    for name in ("hosts", "standard_error", "low", "high", "bias_bound"):
        rows.loc[whole, name] = np.nan
    order = rows.assign(whole=whole)
    order = order.sort_values(
        ["window_start", "section", "series", "cohort", "whole", "cost", "cause"],
        ascending=[False, True, True, True, False, False, True],
    )
    return order[list(COST_COLUMNS)].reset_index(drop=True)


def _summed(table: pd.DataFrame) -> pd.DataFrame:
    """Add up a table's causes, weighted by their hours; hosts stand for host hours until priced.

    Noise is independent from cell to cell. Beside it, which causes crowded hosts left out adds at
    most the bias bound, weighted as the heaviest cause is. A corrected table's errors share the
    detector's, so they are added up as they are.
    """
    weights = table["hours_lost"].to_numpy(float)
    errors = weights * table["standard_error"].to_numpy(float)
    bias = table["bias_bound"].to_numpy(float)
    if table["corrected"].any():
        error = float(errors.sum())
    else:
        choice = weights.max(initial=0.0) ** 2 * np.nan_to_num(bias).max(initial=0.0)
        error = float(np.sqrt((errors**2).sum() + choice))
    value = float(weights @ table["hosts"].to_numpy(float))
    reach = normal_quantile() * error
    first = table.iloc[[0]][[*_TABLE, "n_hosts", "corrected"]]
    return first.assign(
        cause=ALL, component="", hosts=value, standard_error=error, low=value - reach,
        high=value + reach, bias_bound=float(weights @ bias), hours_lost=np.nan,
        told=value > reach,
    )  # fmt: skip
