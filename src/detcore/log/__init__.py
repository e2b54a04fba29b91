"""The event log of a trial's run: every durable fact, appended once.

A worker appends to the log with `EventLog`. The records, the observers and the display of a run
follow the log, each from its own cursor. This package imports only `errors` and `types`.
"""
