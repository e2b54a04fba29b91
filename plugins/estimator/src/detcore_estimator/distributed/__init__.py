"""Train and validate on several workers, inside graphs."""
