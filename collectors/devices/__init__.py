"""Accelerators of this host behind one port: NVIDIA by NVML, AMD by sysfs."""
