"""Lightning callbacks: guard, watchdog, energy, metrics, checkpoints, display."""
