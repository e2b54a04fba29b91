"""Start a run of a trial and end without another word."""

from __future__ import annotations

import sys

from detcore.records import Database

with Database.open(sys.argv[1]) as database:
    database.start_run(int(sys.argv[2]))
