"""Submitting experiments with the earlier system's client."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import tarfile
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from determined_client import Client
from job_server import MODEL_DIR, JobServer, toy_config
from plain_http import PlainHttp
from running_server import RunningServer

SLOW_TO_TAKE_IN = """
import time
from detcore_server.jobs import submit
in_time, queue_experiment = submit.in_time, submit.queue_experiment

async def in_time_once(*arguments):
    judged = await in_time(*arguments)
    submit._DEADLINE_S = 0.5  # from now on
    return judged

submit.in_time = in_time_once
submit.queue_experiment = lambda *args, **kw: (time.sleep(1), queue_experiment(*args, **kw))[1]
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    """A server that runs submitted experiments."""
    with JobServer(tmp_path_factory.mktemp("jobs")) as running:
        yield running


def test_experiment_is_submitted_and_followed(
    jobs: JobServer, environment: Path, tmp_path: Path
) -> None:
    client = Client(environment, tmp_path, jobs.server)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(toy_config(searcher__max_length={"batches": 20})))
    code = tmp_path / "code"
    code.mkdir()
    for path in MODEL_DIR.glob("*.py"):
        (code / path.name).write_text(path.read_text())
    (code / ".detignore").write_text("secret.txt\n")
    (code / "secret.txt").write_text("hush")
    (code / "folder").mkdir()
    (code / "folder" / "data.txt").write_text("data")
    message = client.det("experiment", "create", config, code, "--follow-first-trial")
    assert "Created experiment 1" in message
    assert client.det("e", "wait", 1) == ""
    (trial,) = json.loads(client.det("e", "describe", 1, "--json"))
    assert trial["experiment"]["state"] == "STATE_COMPLETED"
    assert trial["experiment"]["numTrials"] == 1
    assert json.loads(client.det("t", "describe", 1, "--json"))["trial"]["state"] == (
        "STATE_COMPLETED"
    )
    client.det("e", "download-model-def", 1, "--output-dir", tmp_path)
    with tarfile.open(tmp_path / "experiment_1_model_def.tgz") as archive:
        names = archive.getnames()
    assert {"model_def.py", "folder/data.txt"} <= set(names)
    assert "secret.txt" not in names


def _post(jobs: JobServer, **body: Any) -> str:
    """Submit an invalid experiment; return the error message."""
    options = {"config": yaml.safe_dump(toy_config()), "modelDefinition": [], **body}
    token = jobs.server.token()
    with pytest.raises(urllib.error.HTTPError) as caught:
        jobs.server.ask("POST", "/api/v1/experiments", options, token)
    with caught.value as answer:
        assert answer.status in (400, 409), answer.status
        return str(json.loads(answer.read())["error"]["error"])


def _file(path: str, content: str = "text", kind: int = ord("0")) -> dict[str, Any]:
    encoded = base64.b64encode(content.encode()).decode()
    return {"path": path, "type": kind, "content": encoded, "mode": 0o644, "mtime": "0",
            "uid": 0, "gid": 0}  # fmt: skip


def test_invalid_submissions_are_refused(jobs: JobServer) -> None:
    before = jobs.server.ask("GET", "/api/v1/experiments", token=jobs.server.token())
    assert "seacher" in _post(jobs, config="seacher: {name: single}\nentrypoint: a:B\n")
    assert "../out.py" in _post(jobs, modelDefinition=[_file("../out.py")])
    assert "neither a file nor a folder" in _post(
        jobs, modelDefinition=[_file("link", kind=ord("2"))]
    )
    broken = {**_file("a.py"), "content": "not base 64!"}
    assert "is not in base 64" in _post(jobs, modelDefinition=[broken])
    assert "has no templates" in _post(jobs, template="big")
    assert "start paused" in _post(jobs, activate=False)
    assert "this is not an experiment: config" in _post(jobs, config=None)
    after = jobs.server.ask("GET", "/api/v1/experiments", token=jobs.server.token())
    assert before == after
    assert not list(jobs.server.home.glob("handed-in-*"))


def test_experiment_is_only_validated(jobs: JobServer) -> None:
    options = {"config": yaml.safe_dump(toy_config()), "validateOnly": True}
    response = jobs.server.ask("POST", "/api/v1/experiments", options, jobs.server.token())
    assert response["experiment"]["id"] == 0
    assert response["config"]["searcher"]["metric"] == "val_loss"


def test_code_is_served_without_secrets(jobs: JobServer) -> None:
    text = yaml.safe_dump(toy_config(data={"nested": {"token": "hunter2-secret"}}))
    files = [_file("const.yaml", text), _file("notes.txt", "as 'hunter2-secret' says")]
    files += [_file(name, "A=b") for name in (".env", "prod.env", "key.pem")]
    files += [_file("model_def.py", (MODEL_DIR / "model_def.py").read_text())]
    options = {"config": text, "modelDefinition": files}
    instance = jobs.server.ask("POST", "/api/v1/experiments", options, jobs.server.token())
    path = f"/api/v1/experiments/{instance['experiment']['id']}/model_def"
    packed = base64.b64decode(jobs.server.ask("GET", path, token=jobs.server.token())["b64Tgz"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = {item.name: archive.extractfile(item) for item in archive if item.isfile()}
        contents = {name: file.read().decode() for name, file in members.items() if file}
    assert contents.keys() == {"const.yaml", "notes.txt", "model_def.py"}
    assert "hunter2-secret" not in str(contents)
    assert yaml.safe_load(contents["const.yaml"])["data"]["nested"]["token"] != "hunter2-secret"
    assert "hunter2-secret" not in str(instance)


def test_repeated_submission_waits_for_first(tmp_path: Path) -> None:
    options = {
        "config": "{entrypoint: sleep 9, searcher: {name: single, metric: x, max_length: 1}}",
        "modelDefinition": [],
    }
    with RunningServer(tmp_path, setup=SLOW_TO_TAKE_IN) as running:
        with contextlib.closing(PlainHttp(running.url)) as http:
            answer = http.ask("POST", "/api/v1/experiments", options, token=running.token())
        assert answer.status == 200, answer
        assert not list(tmp_path.glob("**/.incoming-*"))
