"""Run an experiment and end without another word."""

from __future__ import annotations

import sys

from detcore.records import Database
from detcore.types import ExperimentState

with Database.open(sys.argv[1]) as database:
    database.set_experiment_state(int(sys.argv[2]), ExperimentState.RUNNING)
