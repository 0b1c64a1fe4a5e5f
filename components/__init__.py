"""The parts a recipe is made of, from the typed spec to the training loop."""
