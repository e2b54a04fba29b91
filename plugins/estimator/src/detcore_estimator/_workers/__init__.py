"""Training and validation on several workers, inside graphs."""
