"""Feed the training data of a trial inside a graph, with a position that is saved and restored."""
