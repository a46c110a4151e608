"""What a demo and a simulation are shown on: screen, tables of cells beside their truth, chart."""
