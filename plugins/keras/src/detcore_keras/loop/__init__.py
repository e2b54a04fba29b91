"""Training and validation steps, and the loops that run them inside Keras."""
