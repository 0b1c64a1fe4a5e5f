"""Lightning callbacks, a file each: guard, watchdog, energy, metrics, checkpoints, display."""
