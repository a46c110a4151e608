"""Parts of `gpu_pressure.py`: what presses, what is watched, what is said of it."""
