"""Open a database when a file appears, record an experiment, and print its id."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from detcore.database import Database

url, go = sys.argv[1], Path(sys.argv[2])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
with Database.open(url) as database:
    print(database.create_experiment(config={}, config_text=None, model_dir="/m", name="x"))
