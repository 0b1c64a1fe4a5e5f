"""The loop: Lightning module, strategy, callbacks, checkpoints."""
