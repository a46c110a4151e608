"""The host by /proc and sysfs: counters, pressure, RDMA."""
