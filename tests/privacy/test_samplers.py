"""All samplers draw one distribution, to the bit where a table can be, on the integers."""

import os
import subprocess
import sys
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from scipy.stats import chi2, norm

from privacy.errors import ParameterError
from privacy.noise import ExactGaussian, NoiseSampler, OpenDpSampler
from privacy.noise_table import (
    TABLE_SIGMA_1024,
    LiveSampler,
    SeededBytes,
    SeededSampler,
    TableSampler,
    noise_table,
    table_cut,
)


class Tableless(LiveSampler):
    """Draws as a host does for a sigma that is too large for a table."""

    def _draw(self, sigma_1024: int, count: int) -> np.ndarray:
        gaussian = ExactGaussian(sigma_1024, self._random_bytes)
        return np.array([gaussian.draw() for _ in range(count)])


SAMPLERS: dict[str, Callable[[], NoiseSampler]] = {
    "table": lambda: TableSampler(os.urandom),
    "seeded": lambda: SeededSampler(11),
    "opendp": OpenDpSampler,
    "host": lambda: LiveSampler(os.urandom),
    "host without a table": lambda: Tableless(os.urandom),
}
SLOW = ("opendp", "host without a table")


def exact_pmf(sigma_1024: int, values: np.ndarray) -> np.ndarray:
    with mpmath.workdps(40):
        square = mpmath.mpf(sigma_1024) ** 2 / 1024**2
        reach = int(40 * sigma_1024 / 1024) + 20
        weights = {x: mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * square)) for x in range(reach)}
        total = weights[0] + 2 * sum(weights[x] for x in range(1, reach))
        return np.array([float(weights[abs(int(x))] / total) for x in values])


def chi_square_p(draws: np.ndarray, sigma_1024: int) -> float:
    reach = int(4 * sigma_1024 / 1024) + 1
    values = np.arange(-reach, reach + 1)
    expected = exact_pmf(sigma_1024, values) * draws.size
    counts = np.bincount(np.clip(draws, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    cells = np.append(expected, draws.size - expected.sum())
    seen = np.append(counts[1:-1], counts[0] + counts[-1])
    # Cells that expect fewer than five are one, with the rarest of the others where it is few too.
    order = np.argsort(-cells)
    apart = min(int((cells >= 5).sum()), len(cells) - 1)
    if cells[order[apart:]].sum() < 5:
        apart -= 1
    cells = np.append(cells[order[:apart]], cells[order[apart:]].sum())
    seen = np.append(seen[order[:apart]], seen[order[apart:]].sum())
    return float(chi2.sf(((seen - cells) ** 2 / cells).sum(), len(cells) - 1))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("sigma_1024", [700, 2048, 9999])
def test_sampler_follows_the_exact_pmf(name: str, sigma_1024: int) -> None:
    count = 6_000 if name in SLOW else 100_000
    draws = SAMPLERS[name]().sample(count, np.array([sigma_1024]))
    assert chi_square_p(draws.ravel(), sigma_1024) > 1e-9


@pytest.mark.parametrize("sigma_1024", [2048, 9999])
def test_chi_square_sees_a_sigma_three_percent_low(sigma_1024: int) -> None:
    draws = SeededSampler(3).sample(100_000, np.array([sigma_1024 * 97 // 100]))
    assert chi_square_p(draws.ravel(), sigma_1024) < 1e-9


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler_draws_integers_and_leaves_check_words_alone(name: str) -> None:
    sampler = SAMPLERS[name]()
    sigmas = np.array([0, 0, 2048, 5000, 2048], dtype=np.int64)
    noise = sampler.sample(40, sigmas)
    assert noise.dtype == np.int64
    assert noise.shape == (40, 5)
    assert (noise[:, :2] == 0).all()
    assert (noise[:, 2:] != 0).any(axis=0).all()
    assert isinstance(sampler, NoiseSampler)
    assert sampler.seeded is (name == "seeded")


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler_refuses_a_negative_sigma(name: str) -> None:
    with pytest.raises(ParameterError, match="sigma"):
        SAMPLERS[name]().sample(1, np.array([0, -1]))


def test_sampler_of_nobody_is_empty() -> None:
    assert TableSampler(os.urandom).sample(0, np.array([0, 2048])).shape == (0, 2)


@pytest.mark.parametrize("sigma_1024", [1, 300, 2048, 2500, 70_001])
def test_table_is_exact_to_128_bits(sigma_1024: int) -> None:
    """Each cumulative probability against mpmath, independent of the table's recurrence."""
    table = noise_table(sigma_1024)
    with mpmath.workdps(90):
        square = mpmath.mpf(sigma_1024) ** 2 / 1024**2
        reach = int(16 * sigma_1024 / 1024) + 3
        weights = [mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * square)) for x in range(reach)]
        total = weights[0] + 2 * sum(weights[1:])
        running = sum(weights[x] for x in range(1 - table.offset, reach))
        for index in range(len(table.high)):
            running += weights[abs(table.offset + index)]
            exact = running / total * 2**128
            # Half a unit of rounding and what lies beyond the table.
            assert abs(table.threshold(index) - exact) < 1.5


def test_cut_is_reported_and_far_below_delta() -> None:
    draws = 12_500 * 10_081 * 1_600
    for sigma in (2048, 632_763):
        assert 0 < table_cut(sigma) * draws < 1e-21


def words(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def served(data: bytes) -> Callable[[int], bytes]:
    place = 0

    def serve(count: int) -> bytes:
        nonlocal place
        place += count
        return data[place - count : place]

    return serve


def test_tie_on_64_bits_is_settled_by_64_more() -> None:
    table = noise_table(2048)
    index = -table.offset  # the threshold between 0 and 1
    high, low = int(table.high[index]), int(table.low[index])
    assert table.draw(1, served(words(high, low))).tolist() == [1]
    assert table.draw(1, served(words(high, low - 1))).tolist() == [0]
    assert table.draw(1, served(words(high - 1))).tolist() == [0]
    assert table.draw(1, served(words(high + 1))).tolist() == [1]


def test_extreme_words_reach_the_tails() -> None:
    """All thresholds of the far tails share their first 64 bits, so ties there are many."""
    table = noise_table(2048)
    lowest = table.draw(1, served(words(0, 0)))[0]
    highest = table.draw(1, served(words(2**64 - 1, 2**64 - 1)))[0]
    assert lowest <= -26
    assert highest >= 26
    assert table.draw(1, served(words(0, 2**64 - 1)))[0] > lowest


def test_guide_and_search_agree() -> None:
    table = noise_table(5000)
    random_words = np.random.default_rng(2).integers(0, 2**64, 20_000, dtype=np.uint64)
    fast = table.draw(random_words.size, served(random_words.tobytes()))
    slow = np.searchsorted(table.high, random_words, side="right") + table.offset
    assert (fast == slow).all()


@pytest.mark.parametrize("sigma_1024", [0, -5, (1 << 27) + 1])
def test_table_refuses_a_sigma_out_of_range(sigma_1024: int) -> None:
    with pytest.raises(ParameterError):
        noise_table(sigma_1024)


def test_seeded_noise_repeats_and_names_tell_streams_apart() -> None:
    sigmas = np.array([2048, 0, 9000])
    first = SeededSampler(5, "a").sample(50, sigmas)
    assert (first == SeededSampler(5, "a").sample(50, sigmas)).all()
    for other in (SeededSampler(5, "b"), SeededSampler(6, "a")):
        assert (first != other.sample(50, sigmas)).any()
    again = SeededSampler(5, "a")
    again.sample(50, sigmas)
    assert (again.sample(50, sigmas) != first).any()


@pytest.mark.parametrize("sigma_1024", [TABLE_SIGMA_1024 + 1, 60_000 * 1024, 6 * 10**14])
def test_host_draws_large_sigmas_without_a_table(sigma_1024: int) -> None:
    """So large that cells of equal probability are those of the normal distribution."""
    draws = LiveSampler(os.urandom).sample(1, np.full(8_000, sigma_1024))[0]
    seen = np.histogram(norm.cdf(draws * 1024 / sigma_1024), bins=50, range=(0, 1))[0]
    assert chi2.sf(((seen - 160) ** 2 / 160).sum(), 49) > 1e-9
    assert np.unique(draws % 2).size == 2


def test_seeded_bytes_are_one_stream() -> None:
    whole = SeededBytes(1, "x")(100)
    parts = SeededBytes(1, "x")
    assert parts(33) + parts(67) == whole
    assert SeededBytes(1, "y")(100) != whole
    # Seed and name cannot be shifted into one another.
    assert SeededBytes(1, "2/3")(16) != SeededBytes(12, "3")(16)


def test_system_noise_never_repeats() -> None:
    sigmas = np.full(50, 9000)
    for make in (make for name, make in SAMPLERS.items() if name != "seeded"):
        assert (make().sample(1, sigmas) != make().sample(1, sigmas)).any()


@pytest.mark.parametrize(("statement", "loaded"), [("", 0), ("privacy.noise.OpenDpSampler();", 1)])
def test_opendp_loads_with_its_sampler_and_not_before(statement: str, loaded: int) -> None:
    """Importing the port costs nothing; a sampler is complete before privileges are given up."""
    code = f"import sys, privacy.noise; {statement} sys.exit('opendp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == loaded
