"""The host by eBPF: what the kernel did, by cgroup, CPU, device and peer."""
