"""The agent as a service on its host: observed, reloaded, examined, seen by `agent top`."""
