"""Layers around every request: connections, limits, headers, errors and the log."""
