"""GPU time of every process that loads the library of cupti/: how long each kernel ran."""
