"""Save and restore the training state: models, optimizers, generators, and attributes."""
