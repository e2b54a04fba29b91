"""What crosses the line between a worker and its runner: one log out, questions and answers."""

from __future__ import annotations

import json
from pathlib import Path
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
from detcore.database import Database

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
    finished = detcore("run", detcore.config(entrypoint="python3 train.py", **changes), folder)
    assert finished.code == 0, finished.output
    return finished.output


@pytest.mark.cold
def test_a_worker_has_neither_the_records_nor_what_reads_files(detcore: Detcore) -> None:
    # A storage type with typed settings would bring the library of its settings.
    output = run_script(detcore, LOADED, checkpoint_storage=str(detcore.tmp_path / "store"))
    [line] = [line for line in output.splitlines() if line.startswith("told ")]
    told = json.loads(line.removeprefix("told "))
    foreign = {"sqlalchemy", "alembic", "pydantic", "yaml", "click", "optuna", "rich", "httpx"}
    assert foreign & {*told["packages"]} == set()
    around = ("database", "config", "delivery", "runner", "search", "remote", "cli")
    loaded = {name.split(".")[1] for name in told["modules"]}
    assert loaded & {*around} == set()
    assert told["best"] == 1.0


def test_a_worker_asks_how_good_other_trials_are(detcore: Detcore) -> None:
    script = LOADED.replace("1.0}", "float(context.info.trial_id)}")
    folder = detcore.write_code("train.py", script)
    config = detcore.config(
        entrypoint="python3 train.py",
        searcher={"name": "random", "metric": "val_loss", "max_length": 1, "max_trials": 3,
                  "max_concurrent_trials": 1},
    )  # fmt: skip
    finished = detcore("run", config, folder, "--verbose")
    assert finished.code == 0, finished.output
    told = [line for line in finished.output.splitlines() if "told " in line]
    assert [json.loads(line.partition("told ")[2])["best"] for line in told] == [1.0, 1.0, 1.0]


def test_deleting_asks_the_runner_whether_a_model_needs_it(detcore: Detcore) -> None:
    run_script(detcore, DELETES.replace("KEPT", "none"))
    with detcore.database() as database:
        (gone, kept) = database.list_checkpoints()
        assert (gone.state, kept.state) == ("DELETED", "COMPLETED")
        database.create_model("digits")
        database.register_version("digits", kept.uuid)
    output = run_script(detcore, DELETES.replace("KEPT", kept.uuid))
    assert "left {'b': 1" in output
    assert "left {}" in output
    assert f"refused checkpoint {kept.uuid} is in the model registry: digits version 1" in output
    assert "unknown is fine" in output
    with detcore.database() as database:
        assert database.get_checkpoint(kept.uuid).state == "COMPLETED"
        states = [found.state for found in database.list_checkpoints(experiment_id=2)]
    assert states == ["DELETED", "COMPLETED"]


def test_a_run_is_explained_by_its_log_alone(detcore: Detcore) -> None:
    finished = detcore("run", detcore.config(), Path(__file__).parent / "model")
    assert finished.code == 0, finished.output
    [log] = detcore.home.rglob("spool-1.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    kinds = [line["kind"] for line in lines]
    assert (kinds[0], kinds[-1]) == ("trial_started", "trial_finished")
    assert kinds.count("validation") == 4
    assert kinds.count("checkpoint_started") == kinds.count("checkpoint_committed") == 4
    assert lines[-1]["payload"] == {"state": "COMPLETED", "error": None}
    with detcore.database() as database:
        known = {found.uuid for found in database.list_checkpoints(states=["COMPLETED"])}
    committed = {
        line["payload"]["uuid"] for line in lines if line["kind"] == "checkpoint_committed"
    }
    assert committed == known
