"""Feed a trial's training data inside a graph, with a position that is saved and restored."""
