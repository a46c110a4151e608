"""`make gpu-check`, GPU time: the library of cupti/ beside torch.profiler, and its cost."""
