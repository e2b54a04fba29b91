"""A runner whose trials report to a server: what a server starts for an experiment handed in.

``python run_reporting.py URL CONFIG MODEL_DIR``, or ``python run_reporting.py URL --resume ID``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from running_server import USER

from detcore.config import load_config
from detcore.database import Database
from detcore.environment import read_environment
from detcore.experimental._printing import PrintingListener
from detcore.hooks import PluginManager
from detcore.runner import ReportTo, RunSettings, resume_experiment, start_experiment


def main() -> None:
    url, *arguments = sys.argv[1:]
    environment = read_environment()
    with Database.open(environment.database_url) as database:
        user_id = database.get_user(USER).id
    settings = RunSettings(
        environment=environment,
        plugins=PluginManager(environment),
        listener=PrintingListener(),
        report_to=ReportTo(url=url, user_id=user_id),
    )
    if arguments[0] == "--resume":
        result = resume_experiment(int(arguments[1]), settings)
    else:
        result = start_experiment(load_config(Path(arguments[0])), Path(arguments[1]), settings)
    print(result.experiment_id, result.state.value, flush=True)


if __name__ == "__main__":
    main()
