"""Epochs packed into rows answer as a plain dictionary of them would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aggregator.protocol.epochs import KnownEpoch, KnownEpochs

HOSTS = (bytes(16), b"\1" * 16)

# Few values, so that ids occur in other columns too, and epochs come again with another hash.
IDS = (bytes(16), b"\1" * 16, bytes(8) + b"\1" * 8)
KEYS = st.sampled_from([None, bytes(32), b"\1" * 32, bytes(4) + b"\1" * 28])


@st.composite
def epochs(draw: st.DrawFn) -> KnownEpoch:
    begun_s = draw(st.integers(0, 9))
    return KnownEpoch(
        draw(st.sampled_from(HOSTS)),
        draw(st.sampled_from(IDS)),
        draw(KEYS) or b"\2" * 32,
        begun_s,
        begun_s + draw(st.integers(1, 3)),
        draw(st.integers(0, 2**64 - 1)),
        dead=draw(st.booleans()),
        key=draw(KEYS),
    )


STEPS = st.lists(st.one_of(epochs(), st.integers(0, 12)), max_size=12)


def seen(known: KnownEpoch | None) -> tuple[object, ...] | None:
    if known is None:
        return None
    times = (known.not_before, known.not_after, known.ledger_ctr)
    return known.epoch_id, known.epoch_hash, *times, known.dead, known.key


@given(STEPS, st.booleans())
def test_known_epochs_answer_as_a_dictionary_does(
    steps: list[KnownEpoch | int], in_use: bool
) -> None:
    """A step is an epoch to keep, or the time by which all that ended is forgotten."""
    packed, plain = KnownEpochs(), dict[tuple[bytes, bytes], KnownEpoch]()
    for step in steps:
        if isinstance(step, KnownEpoch):
            name = (step.host_id, step.epoch_id)
            old = packed.find(*name)
            if old is not None:
                step.not_before, step.not_after = old.not_before, old.not_after
            packed.put(step)
            plain[name] = step
        else:
            left = {name: one for name, one in plain.items() if one.not_after > step}
            assert packed.forget(step, step if in_use else 99) == len(plain) - len(left)
            plain = left
        assert len(packed) == len(plain)
        for host in HOSTS:
            mine = [one for one in plain.values() if one.host_id == host]
            assert packed.marks(host) == sorted((one.ledger_ctr, one.not_before) for one in mine)
            for epoch_id in IDS:
                assert seen(packed.find(host, epoch_id)) == seen(plain.get((host, epoch_id)))
