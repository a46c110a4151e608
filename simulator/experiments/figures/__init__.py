"""Figures of experiments: a module each, `draw(rows)` gives the figure and its sentence."""
