"""Stops at every operation on storage and records, and the checks that follow."""
