"""The partitions that a reader claims of the coordinator, and whether the claims count."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .words import Claim, Granted, Superseded


class Claims:
    """One claim a partition; reading may begin when all of them were granted.

    superseded  a claim no longer counts: another reader has the partition
    """

    def __init__(self, new_number: Callable[[], bytes]) -> None:
        """Hold nothing.

        new_number  draws the number of a claim, 16 B, never the same twice
        """
        self._new_number = new_number
        self._claims: dict[int, Claim] = {}
        self._granted: set[int] = set()
        self.superseded = False

    def divide(self, partitions: Iterable[int]) -> None:
        """Claim these partitions, and no others; no claim made before counts any more."""
        self._claims = {part: Claim(part, self._new_number()) for part in partitions}
        self._granted.clear()
        self.superseded = False

    @property
    def held(self) -> frozenset[int]:
        """The partitions that are claimed."""
        return frozenset(self._claims)

    @property
    def ready(self) -> bool:
        """Whether every claim counts."""
        return self._granted == self._claims.keys()

    def all(self) -> tuple[Claim, ...]:
        """Every claim, in the order in which they were made."""
        return tuple(self._claims.values())

    def of(self, partition: int) -> Claim:
        """The claim of a partition that is held."""
        return self._claims[partition]

    def is_granted(self, partition: int) -> bool:
        """Whether the claim of a partition counts."""
        return partition in self._granted

    def has(self, claim: Claim) -> bool:
        """Whether a claim is one of these, and not one of an earlier division."""
        return self._claims.get(claim.partition) == claim

    def heed(self, order: Granted | Superseded) -> None:
        """Take what the coordinator says of a claim."""
        if not self.has(order.claim):
            return
        if isinstance(order, Granted):
            self._granted.add(order.claim.partition)
        else:
            self.superseded = True
