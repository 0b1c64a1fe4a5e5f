"""Training loop: Lightning module, strategy, callbacks, checkpoints."""
