"""Comparison of two runs by settings and step digests."""
