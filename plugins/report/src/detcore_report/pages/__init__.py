"""HTML pages about an experiment, and their parts."""
