"""Repeated training of recorded steps in a separate process."""
