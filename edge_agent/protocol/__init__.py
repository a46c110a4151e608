"""The agent's side of the protocol: pure state machines over a batch of hosts."""
