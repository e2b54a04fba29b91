"""Register versions of a model together with other processes, once a file appears."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from detcore.database import Database

url, go, checkpoint, count = sys.argv[1:]
with Database.open(url) as database:
    print("ready", flush=True)
    while not Path(go).exists():
        time.sleep(0.001)
    for index in range(int(count)):
        version = database.register_version("shared", checkpoint, comment=f"try {index}")
        database.add_model_metadata("shared", {f"version-{version.number}": index})
        print(version.number)
