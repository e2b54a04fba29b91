"""The state of a training run: variables, random generators, and their files in checkpoints."""
