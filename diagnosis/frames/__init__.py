"""What one second of this host looked like: step times, and the signals around them."""
