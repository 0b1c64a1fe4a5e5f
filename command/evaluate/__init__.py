"""What `action=evaluate` asks of checkpoints, here, on ranks and in the queue."""
