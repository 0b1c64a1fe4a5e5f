"""What steps, layers, axes and guards of a run cost, beside peers and limits."""
