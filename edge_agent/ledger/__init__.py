"""The durable privacy ledger of a host: what it spent, what waits to be sent."""
