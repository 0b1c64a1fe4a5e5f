"""Site cards: the short run that measures a machine, and the plan that reads its card."""
