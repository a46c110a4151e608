"""Sweeps over scenarios and plans: many runs in parallel, one row each, figures and a report.

`file` reads what to sweep, `axes` turns one point of it into a scenario and a plan, `windows` plays
it, `sweep` plays all of them and goes on where it was cut off; `plots` and `report` show what came
of it. Docs: docs/simulate.md.
"""
