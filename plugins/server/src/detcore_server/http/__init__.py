"""HTTP layers: connections, limits, headers, errors and the log."""
