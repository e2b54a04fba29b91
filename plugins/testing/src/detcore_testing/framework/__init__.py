"""Suite for framework plugins."""
