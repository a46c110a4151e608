"""Reports read by Spark: partial sums with the hosts in them, for a Leader."""
