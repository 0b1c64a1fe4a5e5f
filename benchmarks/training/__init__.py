"""Cost of steps, layers, parallel axes and guards of a run, relative to peers and limits."""
