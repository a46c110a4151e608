"""Where somebody who does not follow the protocol gets in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aggregator.helper_port import HelperPort
from transport.port import Transport


def _as_it_is(port: HelperPort) -> HelperPort:
    return port


@dataclass(frozen=True, slots=True)
class Tampering:
    """Hooks of `exact`; without any, everybody is honest.

    helper      around the Leader's way to its Helper
    transport   around the hosts' way to the log, in each of their processes: to be pickled
    """

    helper: Callable[[HelperPort], HelperPort] = _as_it_is
    transport: Callable[[Transport], Transport] | None = None


HONEST: Final = Tampering()
