"""Hardware faults of this host, from sysfs and the kernel's log; reading only."""
