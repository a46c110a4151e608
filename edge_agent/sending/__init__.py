"""Effects carried out: ledger first, then the outbox, then the log."""
