"""Tests of submissions: validation, single recording, order and ownership."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from job_server import MODEL_DIR, JobServer, toy_config, wait_for
from running_server import USER

from detcore.client import Determined, ExperimentReference
from detcore.client.http import (
    PackedContext,
    ServerUnavailableError,
    Session,
    read_events,
    send_submission,
)
from detcore.client.http.http_transport import HttpTransport
from detcore.config.problems import find_closest
from detcore.errors import (
    ConfigError,
    DetcoreError,
    ForbiddenError,
    InvalidArgumentError,
    NotFoundError,
    RunError,
    UnsafePathError,
)
from detcore.run.trial_start import Slots
from detcore.types import ExperimentState

API = "/api/detcore/v1"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    """Server that runs one slow experiment at a time. Others wait."""
    with JobServer(tmp_path_factory.mktemp("jobs")) as running:
        slow: dict[str, Any] = {
            "hyperparameters__pause_s": 0.2,
            "searcher__max_length__batches": 5000,
        }
        assert submit(running, **slow) == 1
        session = running.session()
        wait_for(lambda: read_events(session, 1, 0)["num_before"] is None)
        yield running


def submit(jobs: JobServer, user: str = USER, **changes: Any) -> int:
    submission, context = jobs.given(**changes)
    with context.file:
        return send_submission(jobs.session(user), submission, context)


def experiment(jobs: JobServer, number: int, user: str = USER) -> ExperimentReference:
    return Determined(transport=HttpTransport(jobs.session(user))).get_experiment(number)


def num_experiments(jobs: JobServer) -> int:
    with jobs.database() as database:
        return database.count_experiments()


class Forgetful(Session):
    """Loses the responses to the first repeatable requests."""

    lost: tuple[str, ...] = ()

    def request(self, method: str, path: str, **request: Any) -> Any:
        answer = super().request(method, path, **request)
        if (method, path) != self.lost and method != "GET":
            self.lost = (method, path)
            raise ServerUnavailableError("the connection broke before the answer came")
        return answer


def test_lost_response_starts_one_experiment(jobs: JobServer) -> None:
    before = num_experiments(jobs)
    session = Forgetful(jobs.url, str(jobs.server.token()))
    submission, context = jobs.given()
    notices: list[str] = []
    with context.file:
        number = send_submission(session, submission, context, notice=notices.append)
        assert sum("the connection broke" in line for line in notices) == 3, notices
        assert send_submission(session, submission, context) == number
    session.close()
    assert num_experiments(jobs) == before + 1


def test_experiment_of_other_process_ends_with_it(jobs: JobServer) -> None:
    record = (
        "import sys; from pathlib import Path; from detcore.records import Database\n"
        "with Database.open(sys.argv[1]) as database:\n"
        "    number = database.create_experiment("
        "config={}, config_text=None, model_dir='/', name='n')\n"
        "    lock = database.open_lock(number, Path(sys.argv[2]))\n"
        "    assert lock.acquire()\n"
        "    print(number, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", record, jobs.server.database_url, str(jobs.client.home)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        number = int(process.stdout.readline())
        assert not read_events(jobs.session(), number, 0)["is_over"]
        process.stdin.close()
        process.wait()
    assert read_events(jobs.session(), number, 0)["is_over"]


def test_queued_experiment_can_be_ended(jobs: JobServer) -> None:
    session = jobs.session()
    first, second = submit(jobs), submit(jobs)
    before = read_events(session, first, 0)["num_before"]
    assert before >= 1
    assert read_events(session, second, 0)["num_before"] == before + 1
    assert experiment(jobs, first).state.value == "RUNNING"

    experiment(jobs, first).cancel()
    wait_for(lambda: experiment(jobs, first).state.value == "CANCELED")
    assert read_events(session, first, 0)["is_over"]
    wait_for(lambda: read_events(session, second, 0)["num_before"] == before)

    experiment(jobs, second).pause()
    wait_for(lambda: experiment(jobs, second).state.value == "PAUSED")
    experiment(jobs, second).activate()  # back at its position in the queue
    assert read_events(session, second, 0)["num_before"] == before
    experiment(jobs, second).kill()
    assert experiment(jobs, second).wait(interval=0.1).value == "CANCELED"

    code = jobs.server.home / "experiments" / str(second) / "code"
    assert (code / "model_def.py").read_text() == (MODEL_DIR / "model_def.py").read_text()
    experiment(jobs, second).delete()
    assert not code.parent.exists()
    with pytest.raises(NotFoundError):
        read_events(session, second, 0)
    assert submit(jobs) > second  # numbers are not reused


def test_only_owner_and_admin_may_control(jobs: JobServer) -> None:
    with jobs.database() as database:
        local = database.create_experiment(
            config=toy_config(), config_text=None, model_dir="/code", name="local"
        )
    of_bob, of_ada = submit(jobs, "bob"), submit(jobs)
    for number, why in ((of_ada, "it belongs to 'ada'"), (local, "it was started on the ser")):
        for action in ("pause", "cancel", "kill", "activate", "archive", "delete"):
            with pytest.raises(
                ForbiddenError, match=f"'bob' may not .* experiment {number}: {why}"
            ):
                getattr(experiment(jobs, number, "bob"), action)()
        assert experiment(jobs, number, "bob").state.value == "RUNNING"  # reading is allowed
    experiment(jobs, of_bob, "bob").archive()
    experiment(jobs, of_bob, "bob").cancel()
    experiment(jobs, of_ada).cancel()
    other = submit(jobs, "bob")
    experiment(jobs, other).cancel()  # an administrator
    for number in (of_bob, of_ada, other):
        assert experiment(jobs, number).wait(interval=0.1).value == "CANCELED"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"searcher__metrc": "x"},
            ConfigError,
            r"(?s)toy\.yaml:\d+:\d+: error: unknown key 'metrc'.*did you mean 'metric'",
        ),
        (
            {
                "searcher": {"name": "grid", "metric": "m", "max_length": {"batches": 1}},
                "hyperparameters__rate": {
                    "type": "double",
                    "minval": 0,
                    "maxval": 1,
                    "count": 10**9,
                },
            },
            RunError,
            "the grid has 1000000000 points",
        ),
        ({"launcher": "moon"}, ConfigError, "unknown launcher 'moon'"),
        (
            {"searcher": {"name": "hollow", "metric": "loss"}},
            DetcoreError,
            "hollow",
        ),
        (
            {"searcher__source_checkpoint_uuid": "12345678-1234-1234-1234-123456789012"},
            DetcoreError,
            "12345678",
        ),
    ],
)
def test_invalid_submission_is_not_recorded(
    jobs: JobServer, changes: dict[str, Any], error: type[DetcoreError], words: str
) -> None:
    before = num_experiments(jobs)
    submission, context = jobs.given(**changes)
    with context.file, pytest.raises(error, match=words):
        send_submission(jobs.session(), submission, context)
    assert num_experiments(jobs) == before
    response = jobs.session().request("GET", f"{API}/uploads/{context.digest}")
    assert response == {"size": 0}  # validated before the upload


def test_huge_numbers_and_names_are_quick() -> None:
    assert Slots(10**30, 2).max_concurrent == 10_000
    assert find_closest("x" * 10_000_000, ["searcher", "max_length"]) is None


def send_bytes(jobs: JobServer, data: bytes, digest: str | None = None) -> int:
    archive = PackedContext(
        io.BytesIO(data), digest or hashlib.sha256(data).hexdigest(), len(data), 1
    )
    submission, context = jobs.given()
    context.file.close()
    return send_submission(jobs.session(), submission, archive)


def test_invalid_archives_leave_nothing(jobs: JobServer) -> None:
    before = num_experiments(jobs), sorted((jobs.server.home / "experiments").iterdir())
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../../../model_def.py"))
    with pytest.raises(UnsafePathError, match=r"model_def\.py' is outside the directory"):
        send_bytes(jobs, raw.getvalue())
    with pytest.raises(UnsafePathError, match="cannot be read"):
        send_bytes(jobs, gzip.compress(b"what is this"))
    wrong = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(InvalidArgumentError, match="damaged in transit"):
        send_bytes(jobs, raw.getvalue(), wrong)
    assert jobs.session().request("GET", f"{API}/uploads/{wrong}") == {"size": 0}
    assert before == (num_experiments(jobs), sorted((jobs.server.home / "experiments").iterdir()))


def test_interrupted_upload_resumes(jobs: JobServer) -> None:
    session, path = jobs.session(), f"{API}/uploads/{'5' * 64}"

    def put(offset: int, data: bytes, user: Session = session) -> int:
        response = user.request("PUT", path, body=data, params={"offset": offset})
        return int(response["size"])

    assert put(0, b"12345") == 5
    assert put(0, b"12345") == 5  # its response was lost
    assert put(9, b"x") == 5  # not the next chunk
    assert put(5, b"678") == 8
    archive = jobs.server.home / "uploads" / "1" / f"{'5' * 64}.tar.gz"
    assert (archive.read_bytes(), archive.stat().st_mode & 0o777) == (b"12345678", 0o600)
    assert put(0, b"abc", jobs.session("bob")) == 3  # separate for each user
    with pytest.raises(ConfigError, match="maximum of 128000000 bytes"):
        put(128_000_000, b"1")
    for number in range(6):
        session.request("PUT", f"{API}/uploads/{number:064}", body=b"1", params={"offset": 0})
    assert len(list(archive.parent.iterdir())) == 4  # the newest of each user
    with pytest.raises(DetcoreError):
        session.request(
            "PUT", f"{API}/uploads/..%2f..%2fdetcore.db", body=b"1", params={"offset": 0}
        )


def write_config(jobs: JobServer, **changes: Any) -> Path:
    path = jobs.client.folder / "toy.yaml"
    path.write_text(yaml.safe_dump(toy_config(**changes)))
    return path


def test_ctrl_c_ends_following_only(jobs: JobServer) -> None:
    following = jobs.client.start("run", "--resume", 1, "--master", jobs.url, "--json")
    assert following.stderr is not None
    wait_for(lambda: "batch" in following.stderr.readline(), following)  # type: ignore[union-attr]
    following.send_signal(signal.SIGINT)
    stdout, stderr = following.communicate(timeout=60)
    assert following.returncode == 130, stderr
    assert "experiment 1 continues without being followed" in stderr
    assert f"detcore run --resume 1 --master {jobs.url}" in stderr
    assert json.loads(stdout) == {"experiment_id": 1, "state": "RUNNING"}
    os.kill(jobs.runner_of(1), 0)

    finished = jobs.client(
        "run", write_config(jobs), MODEL_DIR, "--master", jobs.url, "--detach", "--test", "--json"
    )
    assert finished.code == 0, finished.output
    number = finished.summary["experiment_id"]
    assert experiment(jobs, number).get_config()["searcher"]["max_length"] == {"batches": 1}
    finished = jobs.client("experiment", "cancel", number, "--master", jobs.url)
    assert finished.code == 0, finished.output
    assert experiment(jobs, number).wait(interval=0.1).value == "CANCELED"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--detach", "--test"], "--test and --verbose cannot be used with --detach"),
        (
            ["--resume", "1", "--master", "http://x", "--slots", "2"],
            "cannot be used with --resume and --master",
        ),
    ],
)
def test_incompatible_options(jobs: JobServer, arguments: list[str], words: str) -> None:
    command = arguments if "--resume" in arguments else [str(write_config(jobs)), *arguments]
    finished = jobs.client("run", *command)
    assert finished.code == 2
    assert words in finished.stderr


def test_submission_names_are_checked(jobs: JobServer) -> None:
    submission, context = jobs.given()
    with context.file, pytest.raises(InvalidArgumentError, match="submission_id"):
        send_submission(
            jobs.session(), dataclasses.replace(submission, submission_id="../x"), context
        )


def test_next_experiment_starts_and_broken_one_fails(jobs: JobServer) -> None:
    """This test runs last, because it frees the server's only slot."""
    with jobs.database() as database:
        for other in database.list_submissions(phases=["QUEUED"]):
            # The phase is still the previous one shortly after the end.
            if other.state is ExperimentState.RUNNING and other.control is None:
                experiment(jobs, other.experiment_id).kill()
    secret = "a-secret-of-the-configuration"
    lost, next_one = submit(jobs), submit(jobs, data={"api_token": secret})
    shutil.rmtree(jobs.server.home / "experiments" / str(lost) / "code")
    experiment(jobs, 1).kill()
    assert experiment(jobs, 1).wait(interval=0.1).value == "CANCELED"
    assert experiment(jobs, lost).wait(interval=0.1).value == "ERROR"
    events = read_events(jobs.session(), lost, 0)
    assert "the runner exited 3 times in a row" in events["error"]
    assert "which does not exist any more" in "".join(events["lines"])
    assert experiment(jobs, next_one).wait(interval=0.1).value == "COMPLETED"
    directory = jobs.server.home / "experiments" / str(next_one)
    assert secret not in (directory / "journal.jsonl").read_text()
    assert secret in (directory / "secrets.json").read_text()
