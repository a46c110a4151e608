"""Weekly causes and the faults of eight weeks, beside what was injected."""

from __future__ import annotations

from bench.parts import Part
from bench.record import Figure
from bench.simulator_outcome import events
from pointillist.plan_file import default_plan
from simulator.engine.engine_port import EngineSettings
from simulator.engine.simulation import Simulation
from simulator.outcome import TrueTable, cause_table, truth_cells
from simulator.outcome.day_runs import DAY_S
from simulator.scenario import load
from wire.catalogue import Catalogue


def causes_of_eight_weeks() -> Part:
    """Play `faulty_month` for eight weeks; give what was released of each cause and fault."""
    scenario = load("faulty_month").with_(
        start_s=366 * 8 * 7 * DAY_S, duration_s=8 * 7 * DAY_S, step_s=3600, fidelity="noise"
    )
    catalogue, plan = Catalogue.load(), default_plan()
    slow = events(plan, DAY_S)
    simulation = Simulation(scenario, slow, catalogue, EngineSettings(seed=scenario.seed))
    tables = []
    for step in simulation.steps():
        section = "incidents" if step.due.series == "week" else "hardware_faults"
        tables.append(cause_table(truth_cells(step.outcome, catalogue), section))
    weekly = [one for one in tables if one.section == "incidents"]
    (faults,) = [one for one in tables if one.section == "hardware_faults"]
    return {
        "weeks": len(weekly),
        "causes_shown": sum(len(one.shown) for one in weekly) / len(weekly),
        "causes_missed": sum(one.missed for one in weekly) / len(weekly),
        "causes_false": sum(one.false for one in weekly) / len(weekly),
        "faults_shown": len(faults.shown),
        "faults_missed": faults.missed,
        "faults_false": faults.false,
        "first_week": _struck(weekly[0]),
        "eight_weeks": _struck(faults),
    }


def _struck(table: TrueTable) -> list[Part]:
    """Hosts that each cause struck, and what was released of it; None: not told from zero."""
    rows = [one for one in table.rows if one.true_hosts or one.told]
    return [
        {
            "cause": one.cause,
            "true": one.true_hosts,
            "released": one.row.hosts if one.row is not None and one.told else None,
            "error": None if one.row is None else one.row.standard_error,
        }
        for one in sorted(rows, key=lambda row: -row.true_hosts)
    ]


def cause_figures(part: Part) -> list[Figure]:
    units = {
        "causes_shown": "causes a week, shown as numbers",
        "causes_missed": "causes a week that struck somebody and are not told from zero",
        "causes_false": "causes a week that are shown and struck nobody",
        "faults_shown": "hardware faults in eight weeks, shown as numbers",
        "faults_missed": "hardware faults that struck somebody and are not told from zero",
        "faults_false": "hardware faults that are shown and struck nobody",
    }
    return [Figure(name, part[name], unit) for name, unit in units.items()]
