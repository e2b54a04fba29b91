"""Commands on the records of a server show what they show where the records are."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_store import ClientStore
from determined_client import Filled, fill
from plain_http import PlainHttp
from running_server import PASSWORD, USER, RunningServer

from detcore.database import Database
from detcore.testing import DetcoreCommand

LOGGED_IN = {"DETCORE_USER": USER, "DETCORE_PASSWORD": PASSWORD}


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DetcoreCommand]:
    """The command of somebody on the server's machine."""
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
    """The command of somebody elsewhere."""
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
def test_they_show_the_same(
    near: DetcoreCommand, far: DetcoreCommand, server: RunningServer, filled: Filled, command: str
) -> None:
    words = [filled.checkpoints[0] if word == "UUID" else word for word in command.split()]
    here, there = near(*words), far(*words, "--master", server.url)
    # The path of a checkpoint's folder is told where it is.
    folder = str(near.home / "checkpoints")
    shown = [
        [line for line in each.stdout.splitlines() if folder not in line and '"path"' not in line]
        for each in (there, here)
    ]
    assert shown[0] == shown[1], there.stderr
    assert there.code == here.code
    assert there.stderr.splitlines()[0] == f"records of {server.url}"
    assert not (far.home / "detcore.db").exists()


def test_the_variable_says_whose_records_are_shown(
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


def test_what_changes_records_goes_through_the_server(
    near: DetcoreCommand, far: DetcoreCommand, server: RunningServer, filled: Filled
) -> None:
    at = ("--master", server.url)
    assert far("experiment", "archive", 2, *at).code == 0
    assert '"archived": true' in near("experiment", "describe", 2, "--json").stdout
    assert far("experiment", "unarchive", 2, *at).code == 0
    assert '"archived": false' in near("experiment", "describe", 2, "--json").stdout
    experiment = filled.store.experiment()
    assert far("experiment", "delete", experiment, *at).code == 2  # nobody to ask
    assert far("experiment", "delete", experiment, "--yes", *at).code == 0
    assert near("experiment", "describe", experiment).code == 1


def test_a_server_that_is_not_there_is_named(far: DetcoreCommand) -> None:
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
def test_a_server_answers_what_reads_and_nothing_else(
    server: RunningServer, name: str, arguments: dict[str, object], status: int
) -> None:
    path = f"/api/detcore/v1/read/{name}"
    with contextlib.closing(PlainHttp(server.url)) as http:
        assert http.ask("POST", path, {"arguments": arguments}).status == 401
        answer = http.ask("POST", path, {"arguments": arguments}, token=server.token())
    assert answer.status == status, answer.body
    assert b"Traceback" not in answer.body


def test_secrets_of_older_records_stay_where_they_are(
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
    told = server.ask("POST", "/api/detcore/v1/read/get_experiment", arguments, server.token())
    assert told["config"]["data"] == {"token": "********"}
    assert "in-clear-4711" not in str(told)
