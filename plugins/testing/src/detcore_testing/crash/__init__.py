"""Crash points: stops at every operation on storage and records, and the checks that follow.

An operation is everything that others could observe: a file is stored, a manifest is created or
replaced, a file is deleted or flushed to disk, a record changes, a file is written in place. The
process stops before each operation, after it (it took effect, but its response was lost), and,
where files are written in place, within it. Later operations of the stopped process have no effect.

Scenarios: saves (``upload``, ``store_path``, ``save_async``), sharded saves of two workers of which
both or one stop, a save followed by a deletion, retention, recovery, and repair.

Requirements after each stop:

1. Immediately, every checkpoint that has a manifest or is recorded as COMPLETED is complete.
2. After the next process has recovered, the newest checkpoint is the old or the new one, and each
   byte is as saved. An acknowledged checkpoint exists.
3. Nothing else is left: no files without a record, and no record without its files.
4. A second recovery changes nothing. A second retention pass deletes nothing.

Not covered: power cuts that lose flushed data, and two processes that change one checkpoint
concurrently. Their record changes are transactions, so one of the processes is refused.
"""
