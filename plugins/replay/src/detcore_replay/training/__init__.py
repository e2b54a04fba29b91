"""Training of recorded steps again, in a separate process."""
