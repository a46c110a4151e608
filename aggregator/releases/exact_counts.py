"""Releases and sums of before counts were coarse: the same numbers, by counts on the grid.

Stores of before have the exact number of hosts in many columns. One function makes them coarse, for
the store that writes its files anew and for readers of files that nobody has written anew. A grid
needs the task's n_min, which these files lack: the number of hosts itself stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aggregator.protocol.released import FEW_HOSTS, fewest_hosts
from aggregator.statistics.ratios import BELOW_NOISE_ERRORS, Z, normal_quantile, shares_sql
from aggregator.statistics.statistics import BIAS_CONFIDENCE, model_sql
from wire.catalogue import LEFT_OUT, UNMEASURED
from wire.task import DEMO_DOMAIN

_FEWEST: Final = f"CASE domain WHEN '{DEMO_DOMAIN}' THEN 1 ELSE {fewest_hosts('')} END"
KEYS: Final = ("series", "cohort", "window_start")
_HOLE: Final = f"split_part(cell, '/', -1) = '{UNMEASURED}'"
_BIAS_Z: Final = f"'{normal_quantile(2 * BIAS_CONFIDENCE - 1)!r}'::DOUBLE"


def step_sql(hosts: str, fewest: str) -> str:
    """`released.host_step`, in SQL."""
    least = f"greatest(({hosts}) / 100, {fewest})"
    power = f"10 ** floor(log10({least}))"
    digits = " ".join(f"WHEN {least} <= {digit} * {power} THEN {digit}" for digit in (1, 2, 5))
    return f"CAST({power} * CASE {digits} ELSE 10 END AS BIGINT)"


def coarse_sql(hosts: str, step: str) -> str:
    """`released.CoarseCount.on_grid`, in SQL."""
    return f"CAST((({hosts}) + ({step}) // 2) // ({step}) * ({step}) AS BIGINT)"


def grid_steps(beside: str, keys: Sequence[str], left_out: str = LEFT_OUT) -> dict[str, str]:
    """Give the tables that `on_grid_sql` joins, in an order in which each needs those before it.

    beside  all cells of some windows or periods, in SQL: `keys`, section, cell, kind; hosts and
            windows that they are added over; window_s, domain, value, variance, whole, sampling
    keys    name a window or a period
    left_out    the cell whose hosts are in the variance of others; empty: none is
    """
    by, same = ", ".join(keys), f"USING ({', '.join(keys)})"
    return {
        "counts": f"""
    SELECT *, {coarse_sql("hosts", "windows * step")} AS coarse, windows * (step // 2) AS off,
        coarse + off AS most, greatest(coarse // windows // fewest, 1) AS parts
    FROM (
        SELECT *, {_FEWEST} AS fewest, {step_sql("hosts / windows", "fewest")} AS step
        FROM (
            SELECT {by}, any_value(hosts) AS hosts, any_value(windows) AS windows,
                any_value(window_s) AS window_s, any_value(domain) AS domain
            FROM ({beside}) GROUP BY {by}
        )
    )
""",  # noqa: S608  (texts of this package)
        "left_outs": f"""
    SELECT {by}, section, any_value(value) AS left_out, any_value(variance) AS left_variance
    FROM ({beside}) WHERE cell = '{left_out}' GROUP BY {by}, section
""",  # noqa: S608  (texts of this package)
        "walls": f"""
    SELECT {by}, section, {model_sql()} AS model, any_value(value) FILTER ({_HOLE}) AS hole,
        round(any_value(whole) FILTER ({_HOLE})) AS wall,
        any_value(sampling) FILTER (NOT {_HOLE}) AS sampling
    FROM ({beside}) GROUP BY {by}, section, model HAVING wall IS NOT NULL
""",  # noqa: S608  (texts of this package)
        "gpus": f"""
    SELECT *, wall / window_s AS own, 1 << CAST(round(log2(greatest(
        sum(own) OVER (PARTITION BY {by}, section) / hosts, 1))) AS INTEGER) AS typical,
        CASE domain WHEN '{DEMO_DOMAIN}' THEN 0 ELSE greatest({FEW_HOSTS}, step) END * typical
            * windows AS few,
        model = '' OR (own > 0 AND own >= few) AS told
    FROM walls JOIN counts {same}
""",  # noqa: S608  (texts of this package)
        "summed": f"""
    SELECT *, coalesce(sum(own) FILTER (NOT told) OVER (PARTITION BY {by}, section), 0)
            + coalesce(sum(own) FILTER (told) OVER (
                PARTITION BY {by}, section ORDER BY model), 0) AS upto,
        floor(upto * parts / (hosts * typical) + 0.5) AS units,
        CASE model WHEN '' THEN 0
            ELSE floor((upto - own) * parts / (hosts * typical) + 0.5) END AS units_before,
        greatest(least((wall - hole) / wall, 1), 0) AS part,
        CASE WHEN part > 0 AND part < 1 THEN sampling / (part * (1 - part) * window_s ** 2)
            ELSE typical * own END AS squares
    FROM gpus
""",  # noqa: S608  (texts of this package)
        "wholes": """
    SELECT * EXCLUDE (part), CASE off WHEN 0 THEN own ELSE floor(units * coarse * typical / parts)
            - floor(units_before * coarse * typical / parts) END * window_s AS coarse_wall,
        CASE off WHEN 0 THEN 0 ELSE floor((CASE model WHEN '' THEN 0.5 ELSE 1 END * most
            + (units - units_before) * off) * typical / parts) + 2 END * window_s AS wall_bound,
        CASE off WHEN 0 THEN squares ELSE (floor(squares * parts / (hosts * typical ** 2) + 0.5)
            + 0.5) * typical ** 2 / parts * most END * window_s ** 2 AS squared,
        greatest(least((coarse_wall - hole) / coarse_wall, 1), 0) AS part
    FROM summed
""",
    }


def on_grid_sql(rows: str, keys: Sequence[str]) -> str:
    """Make what numbers follow from coarse, as `CoarseCounts` and `statistics` do.

    rows    columns as `grid_steps` has them, and whole_variance and covariance
    Returns SQL of `rows` with these replaced, and step, host_bound, new_bound (of whole), left_out
            and left_error
    """
    by, same = ", ".join(keys), f"USING ({', '.join(keys)})"
    return f"""
SELECT rows.* REPLACE (
    counts.coarse AS hosts,
    {_scaled("rows.variance", "greatest(coalesce(left_out, 0), 0)")} AS variance,
    CASE WHEN kind IN ('indicators', 'mean') THEN {_each("rows.whole")} * counts.coarse
        WHEN wholes.wall IS NULL THEN rows.whole WHEN NOT told THEN NULL
        WHEN {_HOLE} THEN coarse_wall ELSE coarse_wall - hole END AS whole,
    {_scaled("rows.whole_variance")} AS whole_variance,
    {_scaled("rows.covariance")} AS covariance,
    CASE WHEN wholes.wall IS NULL OR NOT told OR {_HOLE} THEN 0
        ELSE part * (1 - part) * squared END AS sampling
), counts.step, counts.off AS host_bound,
    CASE WHEN kind IN ('indicators', 'mean') THEN {_each("rows.whole")} * counts.off
        WHEN wholes.wall IS NULL THEN 0 WHEN told THEN wall_bound
        ELSE few * counts.window_s END AS new_bound,
    left_out, sqrt({_scaled("left_variance", "greatest(left_out, 0)")}) AS left_error
FROM (SELECT *, {model_sql()} AS model FROM ({rows})) AS rows JOIN counts {same}
LEFT JOIN left_outs USING ({by}, section)
LEFT JOIN wholes USING ({by}, section, model)
"""  # noqa: S608  (texts of this package)


def _each(whole: str) -> str:
    """For one host: the same number for any number of hosts, however it was rounded."""
    return f"CAST(CAST({whole} / counts.hosts AS FLOAT) AS DOUBLE)"


def _scaled(variance: str, choice: str = "0") -> str:
    """A variance that grows with the hosts, but for the choice among indicators."""
    each = _each(f"({variance} - {choice})")
    return f"CASE counts.off WHEN 0 THEN {variance} ELSE {each} * counts.most + {choice} END"


_MAPPED: Final = """
SELECT * REPLACE (
        coalesce(variance, standard_error ** 2) AS variance,
        coalesce(whole, CASE kind WHEN 'indicators' THEN n_hosts ELSE value / nullif(share, 0) END)
            AS whole,
        coalesce(whole_variance, 0) AS whole_variance, coalesce(covariance, 0) AS covariance,
        coalesce(sampling, 0) AS sampling
    ), n_hosts AS hosts, 1 AS windows
FROM ({})
"""
"""Releases of before `CellBasis` was kept have it in their shares."""
_COUNT: Final = """CAST(json_extract(rejections, '$."' || name || '"') AS BIGINT)"""
_COARSE: Final = coarse_sql(_COUNT, "step")
_REFUSED: Final = (
    f"map_from_entries([{{'key': name, 'value': {_COARSE}}} "
    f"FOR name IN json_keys(rejections) IF {_COARSE} > 0])"
)


def release_steps(beside: str) -> dict[str, str]:
    """`grid_steps` of rows of releases."""
    return grid_steps(_MAPPED.format(beside), KEYS)


def release_on_grid_sql(rows: str) -> str:
    """Make rows of releases of before coarse, beside the tables of `release_steps`.

    rows    columns of `release_files.SCHEMA`, in SQL
    """
    coarse = on_grid_sql(_MAPPED.format(rows), KEYS)
    terms = f"""
SELECT * EXCLUDE (share, share_low, share_high, whole_bound) REPLACE (
        CAST(hosts AS INTEGER) AS n_hosts, CAST(host_bound AS INTEGER) AS n_bound,
        sqrt(variance) AS standard_error,
        CASE WHEN bias_bound IS NOT NULL AND kind = 'indicators' THEN
            least(greatest(left_out + {_BIAS_Z} * left_error, 0), hosts + host_bound)
            ELSE bias_bound END AS bias_bound,
        CAST(to_json({_REFUSED}) AS VARCHAR) AS rejections
    ), new_bound AS whole_bound, value AS x, coalesce(whole, 0) AS d, variance AS vx,
    whole_variance AS vd, covariance AS cov, sampling AS extra, new_bound AS off
FROM ({coarse})
"""  # noqa: S608  (texts of this package)
    return f"""
SELECT * EXCLUDE (
    hosts, windows, model, step, host_bound, new_bound, left_out, left_error
) REPLACE (
    value - {Z} * standard_error AS low, value + {Z} * standard_error AS high,
    value < {BELOW_NOISE_ERRORS!r}::DOUBLE * standard_error AS below_noise
) FROM ({shares_sql(terms)})
"""  # noqa: S608  (texts of this package)


def with_steps(steps: Mapping[str, str], sql: str) -> str:
    return f"WITH {', '.join(f'{name} AS ({step})' for name, step in steps.items())} {sql}"


def coarse_releases_sql(rows: str) -> str:
    """Make whole windows of releases of before coarse, in one statement."""
    return with_steps(release_steps(rows), release_on_grid_sql(rows))


def coarse_hosts_sql(rows: str, n_min: str) -> str:
    """Make `n_hosts` of rows without cells coarse where it is not yet; n_min: in SQL."""
    step = step_sql(f"coalesce({n_min}, n_hosts)", str(fewest_hosts("")))
    coarse = coarse_sql("n_hosts", step)
    return f"""
SELECT * REPLACE (
    CAST(CASE WHEN n_bound IS NULL THEN {coarse} ELSE n_hosts END AS INTEGER) AS n_hosts,
    CAST(coalesce(n_bound, {step} // 2) AS INTEGER) AS n_bound
) FROM ({rows})
"""  # noqa: S608  (texts of this package)
