"""Charts of experiments, drawn by matplotlib or in the terminal."""
