"""Every GPU call of one process for a short while, as pprof and as Chrome trace."""
