"""Hold a write transaction on an SQLite file until standard input is closed."""

from __future__ import annotations

import sqlite3
import sys

connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
connection.close()
