"""Fleets that are played on this machine: the demo and simulations, shown and kept."""
