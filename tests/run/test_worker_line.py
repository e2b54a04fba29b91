"""Process boundary between worker and runner: a log, queries and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from toy_command import Detcore

LOADED = """
import json, os, sys
from detcore import core

with core.init() as context:
    context.train.report_validation_metrics(1, {"val_loss": 1.0})
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "state").write_text("saved")
    best = context.train.get_experiment_best_validation()
    print("told", json.dumps({
        "packages": sorted({name.partition(".")[0] for name in sys.modules}),
        "modules": sorted(name for name in sys.modules if name.startswith("detcore.")),
        "variables": sorted(os.environ),
        "best": best,
    }))
"""
DELETES = """
from detcore import core
from detcore.errors import DetcoreError
from detcore.records import Database

with core.init() as context:
    uuids = []
    for step in (1, 2):
        with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            (path / "a").write_text("1")
            (path / "b").write_text("2")
        uuids.append(uuid)
    print("left", context.checkpoint.delete(uuids[0], ["a"]))
    print("left", context.checkpoint.delete(uuids[0]))
    try:
        context.checkpoint.delete("KEPT")
    except DetcoreError as error:
        print("refused", str(error).partition(".")[0])
    context.checkpoint.delete("3f2a0c1e-0000-4000-8000-000000000001")
    print("unknown is fine")
"""


def run_script(detcore: Detcore, text: str, **changes: Any) -> str:
    folder = detcore.write_code("train.py", text)
    finished = detcore.run_checked(
        "run", detcore.config(entrypoint="python3 train.py", **changes), folder
    )
    return finished.output


@pytest.mark.cold
def test_worker_loads_no_records(detcore: Detcore) -> None:
    # A storage type with typed settings would bring the library of its settings.
    output = run_script(detcore, LOADED, checkpoint_storage=str(detcore.tmp_path / "store"))
    [line] = [line for line in output.splitlines() if line.startswith("told ")]
    results = json.loads(line.removeprefix("told "))
    foreign = {"sqlalchemy", "alembic", "pydantic", "yaml", "click", "optuna", "rich", "httpx"}
    assert foreign & {*results["packages"]} == set()
    around = ("database", "config", "delivery", "runner", "search", "remote", "cli")
    loaded = {name.split(".")[1] for name in results["modules"]}
    assert loaded & {*around} == set()
    assert results["best"] == 1.0


def test_worker_deletion_queries_model_registry(detcore: Detcore) -> None:
    run_script(detcore, DELETES.replace("KEPT", "none"))
    with detcore.database() as database:
        (deleted, remaining) = database.list_checkpoints()
        assert (deleted.state, remaining.state) == ("DELETED", "COMPLETED")
        database.create_model("digits")
        database.register_version("digits", remaining.uuid)
    output = run_script(detcore, DELETES.replace("KEPT", remaining.uuid))
    assert "left {'b': 1" in output
    assert "left {}" in output
    assert (
        f"refused checkpoint {remaining.uuid} is in the model registry: digits version 1" in output
    )
    assert "unknown is fine" in output
    with detcore.database() as database:
        assert database.get_checkpoint(remaining.uuid).state == "COMPLETED"
        states = [checkpoint.state for checkpoint in database.list_checkpoints(experiment_id=2)]
    assert states == ["DELETED", "COMPLETED"]
