"""The same API without its client: guards, refusals, pages, and broken streams."""

from __future__ import annotations

import concurrent.futures
import gzip
import http.client
import io
import json
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from client_store import FILES, ClientStore
from determined_client import Filled
from running_server import PASSWORD, USER, RunningServer

from detcore.log.events import CheckpointDamaged, CheckpointStarted
from detcore.records import OutputLog
from detcore.types import ExperimentState
from detcore_server.server_database import ServerDatabase

_MIB = 1 << 20


class Api:
    """The API as an administrator."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self._token = server.token()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return self.server.ask(method, path, body, self._token)

    def open(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self.server.url + path, headers=headers)
        return urllib.request.urlopen(request)

    def refuse(
        self, method: str, path: str, body: object = None, *, is_stranger: bool = False
    ) -> tuple[int, str]:
        """Send a request that is refused; return the status and the client's message."""
        if body is None and method != "GET":
            body = {}
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.server.ask(method, path, body, "" if is_stranger else self._token)
        with caught.value as answer:
            message = json.loads(answer.read())["error"]
        assert set(message) >= {"code", "reason", "error"}
        return caught.value.code, message["error"]


@pytest.fixture(scope="module")
def api(served: RunningServer) -> Api:
    return Api(served)


@pytest.fixture
def store(filled: Filled) -> ClientStore:
    return filled.store


def test_requests_without_token_are_refused(api: Api) -> None:
    assert api.server.ask("GET", "/info")["version"] == "0.38.1"
    for path in ("/api/v1/me", "/checkpoints/some", "/api/v1/no/such/route"):
        status, message = api.refuse("GET", path, is_stranger=True)
        assert (status, "token" in message) == (401, True), path
    status, message = api.refuse("GET", "/api/v1/no/such/route")
    assert status == 404
    assert message.startswith("detcore does not have GET /api/v1/no/such/route of Determined")
    assert api.refuse("POST", "/api/v1/commands")[0] == 405
    assert api.refuse("GET", "/resources/allocation/raw", is_stranger=True)[0] == 401
    status, message = api.refuse("GET", "/resources/allocation/raw?x=1")
    assert status == 404
    assert message.startswith("detcore does not have GET /resources/allocation/raw of Determined")
    empty = "/api/v1/experiments/1/labels/"
    assert api.refuse("PUT", empty)[0] in (400, 404, 422)


@pytest.mark.parametrize("is_hashed", [True, False])
def test_hashed_password_is_accepted(served: RunningServer, is_hashed: bool) -> None:
    from detcore_server.users.accounts import prehash

    message = prehash(PASSWORD) if is_hashed else PASSWORD
    login = {"username": USER, "password": message, "isHashed": is_hashed}
    said = served.ask("POST", "/api/v1/auth/login", login)
    assert served.ask("GET", "/api/v1/me", token=said["token"])["user"]["username"] == USER
    # A hash is not accepted as a plain password, and vice versa.
    with pytest.raises(urllib.error.HTTPError, match="403"):
        served.ask("POST", "/api/v1/auth/login", {**login, "isHashed": not is_hashed})


def test_administrator_cannot_lock_itself_out(api: Api) -> None:
    own_user = api.ask("GET", "/api/v1/me")["user"]["id"]
    for change in ({"admin": False}, {"active": False}):
        status, response = api.refuse("PATCH", f"/api/v1/users/{own_user}", change)
        assert (status, "cannot deactivate or demote themselves" in response) == (403, True)
    same = {"admin": True, "active": True}
    response = api.ask("PATCH", f"/api/v1/users/{own_user}", same)["user"]
    assert (response["admin"], response["active"]) == (True, True)


def test_plain_password_must_be_long(api: Api) -> None:
    from detcore_server.users.accounts import prehash

    users = "/api/v1/users"
    new = {"user": {"username": "erin"}, "isHashed": False}
    status, message = api.refuse("POST", users, {**new, "password": "short"})
    assert (status, "range is 8 to 1024" in message) == (400, True)
    instance = api.ask("POST", users, {**new, "password": "long-enough"})["user"]
    path = f"{users}/{instance['id']}"
    for options in ({}, {"isHashed": None}, {"isHashed": False}):
        status, message = api.refuse("PATCH", path, {"password": "short", **options})
        assert (status, "range is 8 to 1024" in message) == (400, True)
    login = {"username": "erin", "password": "long-enough", "isHashed": False}
    assert api.server.ask("POST", "/api/v1/auth/login", login)["token"]
    status, message = api.refuse("PATCH", path, {"password": "long-enough", "isHashed": True})
    assert (status, "128 hexadecimal digits" in message) == (400, True)
    # The length of a hashed password is unknown.
    hashed = {"password": prehash("short"), "isHashed": True}
    assert api.ask("PATCH", path, hashed)["user"]["username"] == "erin"


def test_notes_change_but_resources_do_not(api: Api, filled: Filled) -> None:
    path = f"/api/v1/experiments/{filled.experiment}"
    changes = api.ask("PATCH", path, {"notes": "Good."})["experiment"]
    assert changes["notes"] == "Good."
    resources = {"notes": "Better.", "resources": {"maxSlots": 2}}
    status, message = api.refuse("PATCH", path, resources)
    assert (status, "gives experiments no resources" in message) == (400, True)
    assert api.ask("GET", path)["experiment"]["notes"] == "Good."


def test_lists_are_paginated(api: Api, filled: Filled) -> None:
    path = f"/api/v1/experiments/{filled.experiment}/trials"
    first, second = filled.trials
    for query, numbers, start, end in (
        ("", [first, second], 0, 2),
        ("?limit=1", [first], 0, 1),
        ("?limit=1&offset=1", [second], 1, 2),
        ("?limit=0&offset=9", [], 2, 2),
        ("?offset=-1", [second], 1, 2),
        ("?limit=-1", [first, second], 0, 2),
        ("?limit=-2", [], 0, 0),
        ("?orderBy=ORDER_BY_DESC&limit=1", [second], 0, 1),
        ("?sortBy=SORT_BY_BEST_VALIDATION_METRIC", [second, first], 0, 2),
    ):
        response = api.ask("GET", path + query)
        assert [trial["id"] for trial in response["trials"]] == numbers, query
        page = response["pagination"]
        assert (page["startIndex"], page["endIndex"]) == (start, end), query


def test_integers_beyond_floats_are_not_compared(api: Api, store: ClientStore) -> None:
    huge = 10**4000
    experiment = store.experiment()
    trial = store.trial(experiment)
    names = store.checkpoint(trial, 10, {"loss": 0.5, "all": huge})
    other = store.checkpoint(trial, 20, {"loss": huge, "all": -huge})
    store.report(trial, 10, {"loss": huge, "large": 10**308}, kind="training")
    store.report(trial, 20, {"loss": 2.0, "large": 10**308}, kind="training")
    store.report(trial, 30, {"loss": 1, "large": 0.5}, kind="training")

    def ask(path: str) -> Any:
        return api.ask("GET", f"/api/v1/{path}")

    response = ask(f"trials/{trial}")["trial"]
    assert response["bestValidation"]["metrics"]["avgMetrics"]["loss"] == 0.5
    result = response["summaryMetrics"]
    assert result["validation_metrics"]["all"] == {"count": 2, "type": "string", "last": -huge}
    loss = result["avg_metrics"]["loss"]
    assert (loss["count"], loss["min"], loss["max"], loss["last"]) == (3, 1, 2.0, 1)
    assert result["avg_metrics"]["large"]["sum"] == "Infinity"
    for order in ("ASC", "DESC"):
        for by in ("searcherMetric=loss", "sortByMetric=loss"):
            query = f"checkpoints?{by}&orderBy=ORDER_BY_{order}&sortByAttr=SORT_BY_SEARCHER_METRIC"
            listed = ask(f"experiments/{experiment}/{query}")["checkpoints"]
            assert [checkpoint["uuid"] for checkpoint in listed] == [names, other], query
            report = [checkpoint["training"]["searcherMetric"] for checkpoint in listed]
            assert report == [0.5, huge], query
    for path in (
        f"experiments/{experiment}",
        f"experiments/{experiment}/trials?sortBy=SORT_BY_BEST_VALIDATION_METRIC",
        f"trials/{trial}/workloads?includeBatchMetrics=true",
        f"trials/{trial}/checkpoints",
        f"checkpoints/{other}",
        f"checkpoints/{other}/metrics",
        "experiments?sortBy=SORT_BY_PROGRESS",
    ):
        assert ask(path), path
    for path in (
        f"experiments/{experiment}/top-checkpoints",
        f"trials/{trial}/metrics/training",
        f"trials/{trial}/top-checkpoints",
        f"trials/{trial}/checkpoints",
    ):
        assert api.ask("GET", f"/api/detcore/v1/{path}"), path


def test_default_page_has_hundred_experiments(
    tmp_path: Path,
) -> None:
    with ServerDatabase.open(f"sqlite:///{tmp_path / 'detcore.db'}") as database:
        store = ClientStore(tmp_path, database)
        for number in range(103):
            store.experiment(description="odd" if number % 2 else "even")
    with RunningServer(tmp_path) as server:
        token = server.token()

        def numbers(query: str) -> tuple[list[int], int]:
            response = server.ask("GET", f"/api/v1/experiments?{query}", token=token)
            return [result["id"] for result in response["experiments"]], response["pagination"][
                "total"
            ]

        assert numbers("") == (list(range(1, 101)), 103)
        assert numbers("offset=100") == ([101, 102, 103], 103)
        assert numbers("orderBy=ORDER_BY_DESC&limit=2&sortBy=SORT_BY_ID") == ([103, 102], 103)
        assert numbers("offset=-2") == ([102, 103], 103)
        assert numbers("limit=-2") == ([], 103)
        assert numbers("experimentIdFilter.incl=3&experimentIdFilter.incl=9&limit=1") == ([3], 2)
        by_text = "sortBy=SORT_BY_DESCRIPTION&limit=2&offset=51"
        assert numbers(by_text) == ([103, 2], 103)
        assert numbers("projectId=2") == ([], 0)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/experiments?limit=many"),
        ("GET", "/api/v1/experiments?states=STATE_NONE"),
        ("GET", "/api/v1/experiments?experimentIdFilter.gte=5"),  # its client never sends it
        ("GET", f"/api/v1/experiments/{2**80}"),
        ("GET", "/api/v1/trials/metrics/trial_metrics?group=training"),
        ("GET", "/api/v1/trials/1/logs?timestampAfter=yesterday"),
        ("GET", "/api/v1/trials/1/logs?timestampBefore=0.5"),
        ("POST", "/api/v1/models"),
        ("DELETE", "/api/v1/checkpoints"),
    ],
)
def test_invalid_requests_are_refused(api: Api, method: str, path: str) -> None:
    status, message = api.refuse(method, path)
    assert status in (400, 422)
    assert message


def test_states_of_running_experiments(api: Api, store: ClientStore) -> None:
    """An experiment is not running if its process has exited."""
    running = store.experiment(state=ExperimentState.RUNNING)
    trial = store.trial(running, rate=1.0)
    script = (
        "import sys; from detcore_server.server_database import ServerDatabase\n"
        "with ServerDatabase.open(sys.argv[1]) as database:\n"
        "    print(database.create_experiment(config={}, config_text=None, model_dir='', name='g'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, api.server.database_url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    states = [
        api.ask("GET", f"/api/v1/experiments/{number}")["experiment"]["state"]
        for number in (running, int(result.stdout))
    ]
    assert states == ["STATE_RUNNING", "STATE_PAUSED"]
    response = api.ask("GET", f"/api/v1/trials/{trial}")
    assert response["trial"]["state"] == "STATE_QUEUED"


def test_labels_added_concurrently(api: Api, store: ClientStore) -> None:
    path = f"/api/v1/experiments/{store.experiment()}"
    names = [f"label-{number}" for number in range(8)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        requests = [pool.submit(api.ask, "PUT", f"{path}/labels/{name}") for name in names]
        for result in requests:
            result.result()
    assert api.ask("GET", path)["experiment"]["labels"] == names


@pytest.mark.parametrize(
    ("url", "spec", "shown"),
    [
        (
            "s3://bucket/a/b",
            {"type": "s3", "bucket": "bucket", "prefix": "a/b", "endpoint_url": "http://s3:9000",
             "access_key": "AKIA", "secret_key": "hush", "save_trial_best": 3},
            {"type": "s3", "bucket": "bucket", "prefix": "a/b", "endpoint_url": "http://s3:9000",
             "save_trial_best": 3},
        ),
        ("gs://bucket", None, {"type": "gcs", "bucket": "bucket"}),
        (
            "file:///data/with%20space", "/data/with space",
            {"type": "shared_fs", "host_path": "/data/with space"},
        ),
        (
            "sftp://user@host/data", None,
            {"type": "directory", "container_path": "/not-of-this-machine/sftp"},
        ),
    ],
)  # fmt: skip
def test_checkpoint_storage_locations(
    api: Api, store: ClientStore, url: str, spec: Any,
    shown: dict[str, Any],
) -> None:  # fmt: skip
    """The client receives storage settings in its form, without secrets."""
    experiment = store.experiment(**({} if spec is None else {"checkpoint_storage": spec}))
    trial = store.trial(experiment)
    uuid = f"of-{trial}"
    store.database.record_checkpoint(
        CheckpointStarted(uuid=uuid, storage_url=url, steps_completed=1), trial_id=trial
    )
    response = api.ask("GET", f"/api/v1/checkpoints/{uuid}")["checkpoint"]
    assert response["training"]["experimentConfig"]["checkpoint_storage"] == shown
    assert "hush" not in json.dumps(response)
    assert response["state"] == "STATE_ACTIVE"


def test_checkpoint_as_archive(api: Api, store: ClientStore) -> None:
    """The archive has long names, non-ASCII names, and empty directories."""
    long = f"{'deep/' * 30}wéights.bin"
    files = {**FILES, long: "0123456789" * 100, "empty.txt": ""}
    uuid = store.checkpoint(store.trial(store.experiment()), 10, files=files)
    path = f"/checkpoints/{uuid}"
    with api.open(path) as answer:
        assert answer.headers["Content-Type"] == "application/gzip"
        assert f'filename="{uuid}.tar.gz"' in answer.headers["Content-Disposition"]
        plain = gzip.decompress(answer.read())
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        result = {member.name: member for member in archive.getmembers()}
        assert all(member.isfile() and member.mode == 0o644 for member in result.values())
        read = {name: archive.extractfile(name) for name in files}
        assert {name: file.read().decode() for name, file in read.items() if file} == files
        assert set(result) == {*files, "metadata.json", "manifest.json"}
        assert archive.getnames()[-1] == "manifest.json"


def test_large_checkpoint_is_streamed(api: Api, store: ClientStore) -> None:
    size = 160 * _MIB
    uuid = store.checkpoint(store.trial(store.experiment()), 10, files={"big": "w" * size})
    before = _peak_bytes(api.server)
    num_read = 0
    with (
        api.open(f"/checkpoints/{uuid}") as answer,
        gzip.GzipFile(fileobj=answer) as archive,
    ):
        while part := archive.read(_MIB):
            num_read += len(part)
    assert num_read > size
    assert _peak_bytes(api.server) - before < 32 * _MIB


def test_changed_file_breaks_stream(api: Api, store: ClientStore) -> None:
    """A damaged archive must not look like a complete checkpoint."""
    uuid = store.checkpoint(store.trial(store.experiment()), 10)
    weights = store.files(uuid) / "weights.txt"
    weights.write_text(FILES["weights.txt"][::-1])
    with (
        api.open(f"/checkpoints/{uuid}") as answer,
        pytest.raises(http.client.IncompleteRead),
    ):
        answer.read()
    weights.unlink()
    status, message = api.refuse("GET", f"/checkpoints/{uuid}")
    assert status == 409
    assert "weights.txt is missing" in message
    store.database.record_checkpoint(CheckpointDamaged(uuid=uuid))
    status, message = api.refuse("GET", f"/checkpoints/{uuid}")
    assert (status, "is damaged" in message) == (409, True)


def test_unknown_checkpoint_prevents_deletion(api: Api, store: ClientStore) -> None:
    uuid = store.one_checkpoint()
    for other in ("no-such", uuid[:8]):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            api.ask("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid, other]})
    assert (store.files(uuid) / "weights.txt").exists()
    # Without patterns no file is removed.
    api.ask(
        "POST", "/api/v1/checkpoints/rm",
        {"checkpointUuids": [uuid], "checkpointGlobs": []})  # fmt: skip
    assert (store.files(uuid) / "weights.txt").exists()


def test_log_is_followed_to_its_end(api: Api, store: ClientStore) -> None:
    experiment = store.experiment(state=ExperimentState.RUNNING)
    trial = store.trial(experiment)
    store.database.start_run(trial)
    folder = store.home / "experiments" / str(experiment) / "trials" / str(trial)
    log = OutputLog(folder, 1)
    log.append("stdout", "one")
    with api.open(f"/api/v1/trials/{trial}/logs?follow=true") as answer:
        assert json.loads(answer.readline())["result"]["log"] == "one"
        log.append("stdout", "two")
        result = json.loads(answer.readline())["result"]
        assert (result["log"], result["id"], result["level"]) == ("two", "2", "LOG_LEVEL_INFO")
        log.append("stdout", "three")
        store.database.set_experiment_state(experiment, ExperimentState.COMPLETED)
        assert [json.loads(line)["result"]["log"] for line in answer] == ["three"]
    log.close()


def _peak_bytes(server: RunningServer) -> int:
    """Return the peak memory of the server process."""
    result = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert result is not None
    return int(result[1]) * 1024
