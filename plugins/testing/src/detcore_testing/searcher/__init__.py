"""Suite for search methods."""
