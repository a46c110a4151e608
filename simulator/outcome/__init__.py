"""What a simulated fleet released, held against what its hosts truly did."""
