"""Test that commands show the same through a server as on its records."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_store import ClientStore
from determined_client import Filled, fill
from plain_http import PlainHttp
from running_server import PASSWORD, USER, RunningServer

from detcore.records import Database
from detcore.types import ExperimentState, TrialState
from detcore_testing import DetcoreCommand

LOGGED_IN = {"DETCORE_USER": USER, "DETCORE_PASSWORD": PASSWORD}


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DetcoreCommand]:
    """A command on the server's machine."""
    with DetcoreCommand(tmp_path_factory.mktemp("near")) as command:
        command.home.mkdir()
        yield command


@pytest.fixture(scope="module")
def filled(near: DetcoreCommand) -> Iterator[Filled]:
    with Database.open(f"sqlite:///{near.home / 'detcore.db'}") as database:
        filled = fill(ClientStore(near.home, database))
        database.create_model("digits")
        database.register_version("digits", filled.checkpoints[0])
        yield filled


@pytest.fixture(scope="module")
def server(near: DetcoreCommand, filled: Filled) -> Iterator[RunningServer]:
    with RunningServer(near.home) as running:
        yield running


@pytest.fixture
def far(tmp_path: Path) -> Iterator[DetcoreCommand]:
    """A command on another machine."""
    with DetcoreCommand(tmp_path, variables=LOGGED_IN) as command:
        yield command


@pytest.mark.parametrize(
    "command",
    [
        "experiment list",
        "experiment list --all --json",
        "experiment list --state PAUSED --sort metric --limit 1",
        "experiment describe 1",
        "experiment describe 1 --json",
        "experiment trials 1 --sort metric --csv",
        "experiment best 1",
        "experiment wait 1 --json",
        "experiment logs 1 --tail 5",
        "experiment plot 1 -o -",
        "trial describe 1",
        "trial describe 1 --json",
        "trial describe 1 --csv",
        "trial logs 1 --raw --timestamps",
        "trial logs 1 --rank 1 --json",
        "checkpoint list",
        "checkpoint list --experiment 1 --json",
        "checkpoint describe UUID",
        "checkpoint verify UUID",
        "checkpoint verify --all --json",
        "model list",
        "model describe digits --json",
        "top --once --json",
        "experiment describe 99",
        "trial logs 99",
        "checkpoint describe nothing",
        "experiment best 1 --metric nothing",
    ],
)
def test_commands_show_same_output_for_server(
    near: DetcoreCommand, far: DetcoreCommand, server: RunningServer, filled: Filled, command: str
) -> None:
    words = [filled.checkpoints[0] if word == "UUID" else word for word in command.split()]
    here, there = near(*words), far(*words, "--master", server.url)
    # The path of a checkpoint is printed only on its machine.
    folder = str(near.home / "checkpoints")
    listings = [
        [
            line
            for line in run_command.stdout.splitlines()
            if folder not in line and '"path"' not in line
        ]
        for run_command in (there, here)
    ]
    assert listings[0] == listings[1], there.stderr
    assert there.code == here.code
    assert there.stderr.splitlines()[0] == f"records of {server.url}"
    assert not (far.home / "detcore.db").exists()


def test_master_variable_selects_records(
    tmp_path: Path, server: RunningServer, filled: Filled
) -> None:
    variables = {**LOGGED_IN, "DETCORE_MASTER": server.url}
    with DetcoreCommand(tmp_path, variables=variables) as command:
        listed = command("trial", "describe", 1, "--json")
        assert json.loads(listed.stdout)["id"] == 1
        assert listed.stderr == f"records of {server.url}\n"
        uuid = filled.checkpoints[0]
        assert command("checkpoint", "download", uuid, "-o", "copy").code == 0
        assert (tmp_path / "copy" / "weights.txt").read_text() == "1 2 3"
        assert command("report", 1, "-o", "report.html").code == 0
        assert "reads digits" in (tmp_path / "report.html").read_text()


def test_changes_are_sent_to_server(
    near: DetcoreCommand, far: DetcoreCommand, server: RunningServer, filled: Filled
) -> None:
    at = ("--master", server.url)
    assert far("experiment", "archive", 2, *at).code == 0
    assert '"archived": true' in near("experiment", "describe", 2, "--json").stdout
    assert far("experiment", "unarchive", 2, *at).code == 0
    assert '"archived": false' in near("experiment", "describe", 2, "--json").stdout
    experiment = filled.store.experiment()
    assert far("experiment", "delete", experiment, *at).code == 2  # no terminal to confirm
    assert far("experiment", "delete", experiment, "--yes", *at).code == 0
    assert near("experiment", "describe", experiment).code == 1


def test_models_are_changed_through_the_server(
    near: DetcoreCommand, far: DetcoreCommand, server: RunningServer, filled: Filled
) -> None:
    at = ("--master", server.url)
    created = far("model", "create", "zip", "--label", "vision", "--json", *at)
    assert json.loads(created.stdout)["labels"] == ["vision"]
    assert created.stderr == f"records of {server.url}\n"
    uuid = filled.checkpoints[0]
    registered = far("model", "register-version", "zip", uuid[:12], "--comment", "best", *at)
    assert registered.stdout == f"zip version 1: checkpoint {uuid}\n"
    assert far("model", "set-metadata", "zip", "ok=true", *at).stdout == "zip: ok=true\n"
    assert far("model", "delete", "zip", *at).code == 2  # no terminal to confirm
    model = json.loads(near("model", "describe", "zip", "--json").stdout)
    assert [version["comment"] for version in model["versions"]] == ["best"]
    assert far("model", "delete", "zip", "--yes", *at).code == 0
    assert near("model", "describe", "zip").code == 1
    assert not (far.home / "detcore.db").exists()


def test_checkpoints_are_deleted_through_server(
    near: DetcoreCommand, far: DetcoreCommand, server: RunningServer, filled: Filled
) -> None:
    at = ("--master", server.url)
    uuid = filled.store.one_checkpoint()
    tried = far("checkpoint", "delete", uuid, "--dry-run", *at)
    assert "nothing was deleted" in tried.stdout
    assert filled.store.files(uuid).is_dir()
    assert far("checkpoint", "delete", uuid[:12], "--yes", *at).stdout.endswith(
        f"deleted checkpoint {uuid}\n"
    )
    assert not filled.store.files(uuid).exists()
    assert "is already deleted" in far("checkpoint", "delete", uuid, "--yes", *at).stdout
    registered = filled.checkpoints[0]
    refused = far("checkpoint", "delete", registered, "--yes", *at)
    assert refused.code == 1
    assert "is in the model registry: digits version 1" in refused.stderr
    assert filled.store.files(registered).is_dir()


@pytest.mark.parametrize(
    ("command", "why", "remedy"),
    [
        (
            "checkpoint delete UUID --yes --force",
            "does not support --force",
            "detcore model delete",
        ),
        ("checkpoint repair UUID", "on the server's machine", "detcore checkpoint verify"),
        ("checkpoint repair --all", "on the server's machine", "repair --all"),
    ],
)
def test_unsupported_remote_commands_explain_why(
    far: DetcoreCommand, server: RunningServer, filled: Filled, command: str, why: str, remedy: str
) -> None:
    words = [filled.checkpoints[0] if word == "UUID" else word for word in command.split()]
    refused = far(*words, "--master", server.url)
    assert refused.code == 1
    assert why in refused.stderr
    assert remedy in refused.stderr
    assert filled.store.files(filled.checkpoints[0]).is_dir()


def test_experiment_is_pruned_through_server(
    near: DetcoreCommand, far: DetcoreCommand, server: RunningServer, filled: Filled
) -> None:
    store = filled.store
    experiment = store.experiment()
    trial = store.trial(experiment, rate=0.1)
    store.database.set_trial_state(trial, TrialState.COMPLETED)
    first, best, last = (
        store.checkpoint(trial, step, {"loss": loss}) for step, loss in ((1, 3), (2, 1), (3, 2))
    )
    rules = ("--save-experiment-best", "0", "--save-trial-best", "1", "--save-trial-latest", "1")
    at = ("--json", "--master", server.url)
    tried = json.loads(far("checkpoint", "prune", experiment, *rules, "--dry-run", *at).stdout)
    assert tried["deleted"] == [first]
    assert store.files(first).is_dir()
    finished = far("checkpoint", "prune", experiment, *rules, "--yes", *at)
    assert json.loads(finished.stdout)["deleted"] == [first], finished.stderr
    assert [store.files(uuid).exists() for uuid in (first, best, last)] == [False, True, True]
    size = far("experiment", "delete", experiment, "--dry-run", "--master", server.url)
    assert "1 trial, 2 checkpoints" in size.stdout
    assert near("experiment", "describe", experiment).code == 0


# Replaces TensorBoard: prints its event files whenever they change.
TENSORBOARD = """
import os, sys, time
folder = sys.argv[sys.argv.index("--logdir") + 1]
print(os.getpid(), folder, *sys.argv[3:], flush=True)
told = None
while True:
    found = {os.path.relpath(os.path.join(at, name), folder): open(os.path.join(at, name)).read()
             for at, _, names in os.walk(folder) for name in names}
    if found != told:
        told = found
        print(sorted(found.items()), flush=True)
    time.sleep(0.1)
"""


def test_tensorboard_downloads_event_files(
    far: DetcoreCommand, server: RunningServer, filled: Filled, tmp_path: Path
) -> None:
    package = tmp_path / "site" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text(TENSORBOARD, encoding="utf-8")
    store = filled.store
    experiment = store.experiment(state=ExperimentState.RUNNING)
    trial = store.trial(experiment, rate=0.1)
    events = store.home / "experiments" / str(experiment) / "trials" / str(trial) / "tensorboard"
    events.mkdir()
    file = events / "events.out.tfevents.1"
    file.write_text("one")
    (events / "other.txt").write_text("no event file")
    (events / "linked.tfevents").symlink_to("/etc/passwd")
    store.database.start_run(trial)
    with DetcoreCommand(
        far.folder, python_path=[package.parent], variables={**LOGGED_IN, "TMPDIR": str(tmp_path)}
    ) as command:
        running = command.start(
            "tensorboard", experiment, "--master", server.url, "--", "--port", "6007"
        )
        assert running.stdout is not None
        _, folder, *options = running.stdout.readline().split()
        assert options == ["--port", "6007"]
        name = f"experiment-{experiment}/{trial}/tensorboard/events.out.tfevents.1"
        assert running.stdout.readline() == f"{[(name, 'one')]}\n"
        with file.open("a") as growing:
            growing.write(" two")
        assert running.stdout.readline() == f"{[(name, 'one two')]}\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 128 + signal.SIGTERM
        assert command.leftovers() == {}
        assert not Path(folder).exists()
        missing = command("tensorboard", 1, "--master", server.url)
    assert missing.code == 1
    assert "the server has no event files of experiment 1" in missing.stderr
    assert "without --master" in missing.stderr


def test_missing_server_is_reported(far: DetcoreCommand) -> None:
    refused = far("experiment", "list", "--master", "http://127.0.0.1:9")
    assert refused.code == 1
    assert "http://127.0.0.1:9" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("name", "arguments", "status"),
    [
        ("get_experiment", {"experiment_id": 1}, 200),
        ("get_experiment", {"experiment_id": 10**30}, 400),
        ("get_experiment", {"experiment_id": -1}, 400),
        ("get_experiment", {"experiment_id": "one"}, 400),
        ("get_experiment", {"experiment_id": 99}, 404),
        ("get_experiment", {"nothing": 1}, 400),
        ("get_experiment", {}, 400),
        ("list_experiments", {"states": ["NONE"]}, 400),
        ("list_experiments", {"limit": -1}, 400),
        ("list_experiments", {"self": 1}, 400),
        ("delete_experiment", {"experiment_id": 1}, 400),
        ("_read", {}, 400),
        ("url", {}, 400),
        ("metrics", {"trial_id": 1, "kind": "validation"}, 200),
    ],
)
def test_server_only_executes_reads(
    server: RunningServer, name: str, arguments: dict[str, object], status: int
) -> None:
    path = f"/api/detcore/v1/read/{name}"
    with contextlib.closing(PlainHttp(server.url)) as http:
        assert http.ask("POST", path, {"arguments": arguments}).status == 401
        answer = http.ask("POST", path, {"arguments": arguments}, token=server.token())
    assert answer.status == status, answer.body
    assert b"Traceback" not in answer.body


def test_secrets_of_older_records_are_not_sent(
    near: DetcoreCommand, server: RunningServer, filled: Filled
) -> None:
    experiment = filled.store.experiment(archived=True)
    text = json.dumps({"data": {"token": "in-clear-4711"}, "searcher": {"name": "single"}})
    with sqlite3.connect(near.home / "detcore.db") as connection:
        connection.execute(
            "UPDATE experiments SET config = ?, config_text = ? WHERE id = ?",
            (text, text, experiment),
        )
    connection.close()
    arguments = {"arguments": {"experiment_id": experiment}}
    response = server.ask("POST", "/api/detcore/v1/read/get_experiment", arguments, server.token())
    assert response["config"]["data"] == {"token": "********"}
    assert "in-clear-4711" not in str(response)
