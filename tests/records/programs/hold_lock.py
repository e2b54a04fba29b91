"""Hold a write transaction on a database until standard input is closed."""

from __future__ import annotations

import sys

from detcore.records import Database

with Database.open(sys.argv[1]) as database, database._begin_write() as connection:
    print("held", flush=True)
    sys.stdin.read()
