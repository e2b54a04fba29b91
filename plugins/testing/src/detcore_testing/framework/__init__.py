"""The suite for framework plugins."""
