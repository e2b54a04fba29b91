"""The command ``det`` of ``determined`` 0.38.1."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path

import pytest
from certificates import Certificate
from client_store import FILES
from determined_client import Client, Filled
from running_server import PASSWORD, USER, RunningServer

from detcore_server.server_database import ServerDatabase


def _table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_experiments(client: Client, filled: Filled) -> None:
    number = filled.experiment
    (listed,) = _table(client.det("experiment", "list", "--csv"))
    assert [listed[name] for name in ("ID", "Owner", "Name", "State", "Progress")] == [
        str(number), USER, "test", "COMPLETED", "100.0%",
    ]  # fmt: skip
    everything = _table(client.det("e", "list", "--all", "--csv"))
    assert [(row["ID"], row["State"], row["Archived"]) for row in everything] == [
        (str(number), "COMPLETED", "False"),
        (str(filled.paused), "PAUSED", "True"),
    ]
    (described,) = json.loads(client.det("e", "describe", number, "--json"))
    assert described["experiment"]["config"]["searcher"]["metric"] == "loss"
    trials = _table(client.det("e", "list-trials", number, "--csv"))
    assert [(row["Trial ID"], row["# of Batches"]) for row in trials] == [
        (str(filled.trials[0]), "20"),
        (str(filled.trials[1]), "10"),
    ]
    checkpoints = _table(client.det("e", "list-checkpoints", number, "--csv"))
    assert [(row["UUID"], row["Validation Metric"], row["State"]) for row in checkpoints] == [
        (uuid, loss, "COMPLETED")
        for uuid, loss in zip(filled.checkpoints, ("1.5", "0.75", "0.25"), strict=True)
    ]
    (best,) = _table(client.det("e", "list-checkpoints", number, "--best", 1, "--csv"))
    assert best["UUID"] == filled.checkpoints[2]


def test_metrics_of_an_experiment(client: Client, filled: Filled, tmp_path: Path) -> None:
    client.det("e", "describe", filled.experiment, "--metrics", "--outdir", tmp_path)
    rows = _table((tmp_path / "workloads.csv").read_text())
    text = [
        (row["# of Batches"], row["Training Metric: loss"], row["Validation Metric: loss"])
        for row in rows
    ]
    assert text == [("5", "4.5", ""), ("10", "2.5", "1.5"), ("20", "", "0.75"), ("10", "", "0.25")]
    assert rows[1]["Checkpoint State"] == "COMPLETED"
    assert "metric: loss\n" in client.det("e", "config", filled.experiment)


def test_trials_and_their_logs(client: Client, filled: Filled) -> None:
    trial = filled.trials[0]
    described = json.loads(client.det("trial", "describe", trial, "--metrics", "--json"))
    assert described["trial"]["hparams"] == {"rate": 0.1, "layers": [3, 2]}
    assert described["trial"]["bestValidation"]["metrics"]["avgMetrics"]["loss"] == 0.75
    kinds = [
        (next(kind for kind in ("training", "validation", "checkpoint") if workload[kind]))
        for workload in described["workloads"]
    ]
    assert kinds == [
        "training", "training", "validation", "checkpoint", "validation", "checkpoint",
    ]  # fmt: skip
    assert filled.checkpoints[0] in client.det("t", "describe", trial, "--limit", 2)
    logs = client.det("trial", "logs", trial).splitlines()
    assert [text.partition("] ")[2] for text in logs[:2]] == ["the trial starts", "[rank=0] step 0"]
    assert len(logs) == 6  # the last line is the command's output
    assert client.det("e", "logs", filled.experiment, "--tail", 1).splitlines()[0] == logs[4]


def test_checkpoints(client: Client, filled: Filled, tmp_path: Path) -> None:
    uuid = filled.checkpoints[0]
    assert "first" in client.det("checkpoint", "describe", uuid)
    for mode in ("master", "auto"):
        folder = tmp_path / mode
        message = client.det(
            "checkpoint", "download", uuid, "-o", folder, "--mode", mode, "--quiet"
        )
        assert message.strip() == str(folder)
        for name, text in FILES.items():
            assert (folder / name).read_text() == text
    folder = tmp_path / "trial"
    client.det("trial", "download", filled.trials[0], "--best", "-o", folder)
    assert (folder / "weights.txt").read_text() == FILES["weights.txt"]


@pytest.mark.soak
def test_models(client: Client, filled: Filled) -> None:
    instance = json.loads(
        client.det("model", "create", "reader", "--description", "reads digits", "--json")
    )
    assert instance["name"] == "reader"
    early, late, _ = filled.checkpoints
    assert early in client.det("model", "register-version", "reader", early)
    version = json.loads(client.det("m", "register-version", "reader", late, "--json"))
    assert version["modelVersion"]["version"] == 2
    assert [m["name"] for m in json.loads(client.det("model", "list", "--json"))] == ["reader"]
    described = client.det("model", "describe", "reader")
    assert "reads digits" in described
    assert late in described
    listed = json.loads(client.det("model", "list-versions", "reader", "--json"))
    assert [v["checkpoint"]["uuid"] for v in listed["modelVersions"]] == [early, late]


@pytest.mark.soak
def test_unsupported_commands_are_refused(client: Client) -> None:
    assert json.loads(client.det("agent", "list", "--json")) == []
    assert json.loads(client.det("slot", "list", "--json")) == []
    assert json.loads(client.det("job", "list", "--json")) == {"jobs": []}
    assert _table(client.det("task", "list", "--csv")) == []
    message = client.det("token", "list", code=1)
    assert "detcore does not have GET /api/v1/tokens of Determined" in message


@pytest.mark.soak
def test_users(client: Client, served: RunningServer, tmp_path: Path) -> None:
    assert "version: 0.38.1" in client.det("version")
    # Without DET_USER, the logged-in user is used.
    anon = dataclasses.replace(client, home=tmp_path, variables={})
    assert "det user login" in anon.det("user", "whoami", code=1)
    message = anon.det("user", "login", USER, typed="wrong\n", code=1)
    assert "invalid credentials" in message
    anon.det("user", "login", USER, typed=f"{PASSWORD}\n")
    assert f"'{USER}'" in anon.det("user", "whoami")
    assert f"| {USER} " in anon.det("user", "list").replace("  ", " ")
    anon.det("user", "create", "carol", "--password", "Long-enough-1")
    anon.det("user", "edit", "carol", "--admin", "true")
    with ServerDatabase.open(served.database_url) as database:
        assert database.get_user("carol").is_admin
    anon.det("user", "change-password", "carol", typed="Long-enough-2\nLong-enough-2\n")
    anon.det("user", "logout")
    assert "det user login" in anon.det("e", "list", code=1)
    anon.det("user", "login", "carol", typed="Long-enough-2\n")


@pytest.mark.soak
def test_custom_certificate(environment: Path, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    with RunningServer(tmp_path, *certificate.options) as server:
        client = Client(environment, tmp_path, server)
        assert "Unable to verify" in client.det("user", "whoami", typed="n\n", code=1)
        trust = {**client.variables, "DET_MASTER_CERT_FILE": str(certificate.certificate)}
        client = dataclasses.replace(client, variables=trust)
        assert f"'{USER}'" in client.det("user", "whoami")
