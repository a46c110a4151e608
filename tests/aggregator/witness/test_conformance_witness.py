"""What every witness keeps to, whatever it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from aggregator.witness.chain import WitnessUnavailable
from tests.aggregator.witness.witness_kit import HELPER_KEYS, Stand, extend, link_after, patiently
from wire.witness import NO_LINKS, ChainHead


def test_fresh_witness_has_no_links(stand: Stand) -> None:
    witness = stand.open()
    assert witness.head() == NO_LINKS
    witness.close()


def test_links_are_taken_in_order_and_the_same_again_changes_nothing(stand: Stand) -> None:
    witness = stand.open()
    first = link_after(NO_LINKS, "first", closed_s=1_700_000_100)
    second = link_after(first.head(), "second")
    for link in (first, first, second, second):
        assert witness.append(link) == link.head() == witness.head()
    assert witness.head().closed_s == 1_700_000_100
    witness.close()


def test_link_that_does_not_continue_the_chain_is_not_taken(stand: Stand) -> None:
    witness = stand.open()
    before = extend(witness, 1)
    head = extend(witness, 1)
    gap = ChainHead(head.sequence + 1, head.hash, 0)
    elsewhere = ChainHead(head.sequence, bytes(31) + b"\1", 0)
    for wrong in (before, gap, elsewhere, NO_LINKS):
        assert witness.append(link_after(wrong, "wrong")) == head == witness.head()
    witness.close()


def test_chains_of_two_helpers_do_not_meet(stand: Stand) -> None:
    mine, other = (stand.open(key) for key in HELPER_KEYS)
    head = extend(mine, 3)
    assert other.head() == NO_LINKS
    assert extend(other, 1, HELPER_KEYS[1]).sequence == 1
    assert mine.head() == head
    mine.close()
    other.close()


def test_of_two_that_append_at_once_one_wins(stand: Stand) -> None:
    witnesses = [stand.open(), stand.open()]
    head = extend(witnesses[0], 1)
    witnesses[1].head()
    start = Barrier(2)

    def append(number: int) -> tuple[ChainHead, ChainHead]:
        link = link_after(head, number)
        start.wait()
        return link.head(), witnesses[number].append(link)

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(append, range(2)))
    heads = {found for _, found in answers}
    assert sum(own == found for own, found in answers) == 1
    assert heads == {witnesses[0].head()}
    for witness in witnesses:
        witness.close()


def test_stopped_witness_is_unavailable_and_has_kept_everything(stand: Stand) -> None:
    witness = stand.open()
    head = extend(witness, 2)
    stand.stop()
    for _ in range(2):
        with pytest.raises(WitnessUnavailable):
            witness.head()
    with pytest.raises(WitnessUnavailable):
        witness.append(link_after(head, "while away"))
    stand.start()
    assert patiently(witness.head) == head
    assert extend(witness, 1).sequence == 3
    witness.close()
