"""Why was it slow: tail spikes of step times, and their causes. Pure: frames in, findings out."""
