"""Build and run the graph of a model, its session and its hooks."""
