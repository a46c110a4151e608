"""Sweeps over scenarios and plans: many runs, one row each, figures and a report."""
