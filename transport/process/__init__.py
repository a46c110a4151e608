"""What every program stands on: privileges, supervision, clocks, log lines, a doctor's findings."""
