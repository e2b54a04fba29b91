"""The log of a trial's run: every durable fact, appended once; imports `errors` and `types` only.

A worker appends to it with `EventLog`; followers read it from a cursor: the records,
observers, the display of a run.
"""
