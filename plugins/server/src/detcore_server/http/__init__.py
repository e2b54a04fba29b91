"""What every request and answer passes: connections, limits, headers, errors and the log."""
