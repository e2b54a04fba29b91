"""Comparison of two runs, by their settings and by the digests of their steps."""
