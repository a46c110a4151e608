"""Sweeps over scenarios and plans: many runs in parallel, one row each, figures and a report.

`experiment_file` reads what to sweep, `axes` turns one point of it into a scenario and a plan,
`kinds` plays it, `sweep` plays all of them and goes on where it was cut off; `experiment_plots` and
`experiment_report` show what came of it. Docs: docs/simulate.md.
"""
