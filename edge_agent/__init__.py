"""Sources, windows, vectors, participant, ledger."""
