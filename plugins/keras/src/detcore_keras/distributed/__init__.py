"""Several workers: sums of gradients, shared variables and merged metrics."""
