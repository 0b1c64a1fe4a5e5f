"""What a trained model is worth: loss on held-out text, and lm-eval's tasks."""
