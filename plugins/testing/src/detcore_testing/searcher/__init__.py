"""The suite for search methods."""
