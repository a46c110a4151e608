"""A Leader that does not hear its Helper, which hears it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aggregator.protocol.interfaces import HelperPort, HelperUnavailable


class DeafLeader:
    """The Helper's shares and signatures are lost on their way, while `lost`."""

    def __init__(self, port: HelperPort) -> None:
        self._port, self.lost = port, False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        really = getattr(self._port, name)

        def asked(*arguments: Any, **named: Any) -> Any:
            answer = really(*arguments, **named)
            given = getattr(answer, "share", b"") or getattr(answer, "entry", b"")
            if self.lost and given:
                raise HelperUnavailable("the answer was lost")
            return answer

        return asked
