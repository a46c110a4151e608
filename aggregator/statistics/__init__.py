"""From released sums to numbers with errors: cells, ratios, discoveries, root causes."""
