"""Pages about an experiment as HTML, and the parts that they consist of."""
