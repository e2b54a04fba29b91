"""Recorded checkpoints on a server that no URL names, opened again without secrets in records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from storage_servers import ACCESS_KEY, BUCKET, SECRET_KEY, seaweedfs
from toy_command import MODEL_DIR, Detcore, Finished

from detcore.environment import read_environment
from detcore.errors import ConfigError
from detcore.log.events import CheckpointStarted
from detcore.plugins import PluginManager
from detcore.records import Database
from detcore.storage import find_recorded_storage, open_storage

SCRIPT = """
import sys
from detcore import core

storage = {"type": "s3", "bucket": "ckpt", "prefix": "script", "endpoint_url": sys.argv[1],
           "access_key": "test", "secret_key": "testsecret"}
with core.init(checkpoint_storage=storage) as context:
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("of a script")
    print(uuid)
    if len(sys.argv) > 2:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def weed_url() -> Iterator[str]:
    with seaweedfs() as url:
        yield url


@pytest.fixture
def detcore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Detcore]:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    # Without the user's credentials, and without queries to a cloud's metadata server.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with Detcore(tmp_path) as command:
        yield command


def spec(url: str, prefix: str) -> dict[str, Any]:
    return {
        "type": "s3", "bucket": BUCKET, "prefix": prefix, "endpoint_url": url,
        "access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "deadline_s": 10,
    }  # fmt: skip


def ok(finished: Finished) -> Finished:
    assert finished.code == 0, finished.stdout + finished.stderr
    return finished


def assert_no_secret(detcore: Detcore) -> None:
    for path in detcore.home.rglob("*"):
        if path.is_file() and SECRET_KEY.encode() in path.read_bytes():
            assert path.name == "secrets.json" or path.name.startswith("run-"), path
            assert path.stat().st_mode & 0o777 == 0o600, path


@pytest.mark.soak
def test_commands_find_storage_server(
    detcore: Detcore, weed_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"searcher__max_length": {"batches": 10}}
    storage = spec(weed_url, "first")
    run = ok(
        detcore("run", detcore.config(checkpoint_storage=storage, **short), MODEL_DIR, "--json")
    )
    uuid = run.summary["trials"][0]["latest_checkpoint"]
    ok(detcore("checkpoint", "verify", uuid))
    ok(detcore("checkpoint", "describe", uuid))
    ok(detcore("checkpoint", "download", uuid, "-o", tmp_path / "downloaded"))
    assert (tmp_path / "downloaded" / "toy.json").exists()
    assert_no_secret(detcore)
    description = ok(detcore("experiment", "describe", 1, "--json")).stdout
    assert SECRET_KEY not in description
    assert weed_url in description
    # Another experiment, with a different storage, starts from it.
    warm = detcore.config(searcher__source_checkpoint_uuid=uuid, **short)
    ok(detcore("run", warm, MODEL_DIR))
    # Without recorded secrets, the environment's are used. If these are missing, the error says so.
    secrets = detcore.home / "experiments" / "1" / "secrets.json"
    hidden = secrets.rename(secrets.with_name("away"))
    failed = detcore("checkpoint", "verify", uuid)
    assert failed.code == 1
    failed = detcore("checkpoint", "download", uuid, "-o", tmp_path / "again")
    assert failed.code == 1
    assert (
        "access_key and secret_key of the experiment file are not in the records" in failed.stderr
    )
    assert "AWS_ACCESS_KEY_ID" in failed.stderr
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    ok(detcore("checkpoint", "verify", uuid))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    hidden.rename(secrets)
    ok(detcore("checkpoint", "delete", uuid, "--yes"))


@pytest.mark.soak
def test_resume_requires_storage_secrets(
    detcore: Detcore, weed_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = detcore.config(
        entrypoint="model_def:Raises", checkpoint_storage=spec(weed_url, "resumed"),
        max_restarts=0, scheduling_unit=5, min_checkpoint_period={"batches": 5},
    )  # fmt: skip
    mistake, resumed = "own mistake at batch 7", "from batch 5"
    assert mistake in detcore("run", config, MODEL_DIR).stdout
    again = detcore("run", "--resume", 1).stdout
    assert resumed in again
    assert mistake in again
    assert "environment's credentials" not in again
    (detcore.home / "experiments" / "1" / "secrets.json").unlink()
    failed = detcore("run", "--resume", 1)
    assert failed.code != 0
    output = failed.stdout + failed.stderr
    assert "access_key and secret_key of the experiment file are missing from" in output
    assert mistake not in output
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    last = detcore("run", "--resume", 1).stdout
    assert resumed in last
    assert mistake in last
    assert_no_secret(detcore)


def test_killed_script_is_recovered_on_server(detcore: Detcore, weed_url: str) -> None:
    import subprocess
    import sys

    script = detcore.tmp_path / "train.py"
    script.write_text(SCRIPT)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(script), weed_url, *arguments], env=detcore.variables(),
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    first = run()
    assert first.returncode == 0, first.stderr
    ok(detcore("checkpoint", "verify", first.stdout.strip()))
    assert run("killed").returncode < 0
    last = run()  # recovers the killed script's checkpoint on the same server
    assert last.returncode == 0, last.stderr
    assert "could not be recovered" not in last.stderr
    ok(detcore("checkpoint", "verify", "--all"))
    assert_no_secret(detcore)


def test_pruning_on_a_server(detcore: Detcore, weed_url: str) -> None:
    policy = {"save_experiment_best": 100, "save_trial_latest": 100}
    config = detcore.config(
        checkpoint_storage={**spec(weed_url, "pruned"), **policy}, checkpoint_policy="all"
    )
    ok(detcore("run", config, MODEL_DIR))
    plan_text = ok(detcore("checkpoint", "prune", 1, "--dry-run")).stdout
    assert "nothing was deleted" in plan_text
    assert "latest of its trial" in plan_text
    fewer = ("--save-experiment-best", 0, "--save-trial-latest", 1)
    refused = detcore("checkpoint", "prune", 1, *fewer)
    assert refused.code == 2
    assert "--yes" in refused.stderr
    pruning = ok(detcore("checkpoint", "prune", 1, "--yes", *fewer))
    listing = ok(detcore("checkpoint", "list", "--json")).stdout
    assert 1 <= listing.count('"COMPLETED"') <= 2
    assert " deleted, " in pruning.stdout.splitlines()[-1]
    again = ok(detcore("checkpoint", "prune", 1, "--yes", *fewer, "--save-trial-best", 0))
    assert again.stdout.splitlines()[-1].endswith(", 1 kept")
    ok(detcore("checkpoint", "verify", "--all"))


def test_storage_url_hides_password(tmp_path: Path) -> None:
    storage = open_storage("sftp://me:p%40ss@host/folder", home=tmp_path, plugins=None)
    assert storage.url == "sftp://me@host/folder"
    assert storage._options == {"password": "p@ss"}  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="has a password in a URL of the scheme 'webdav'"):
        open_storage("webdav://me:pass@host/folder", home=tmp_path, plugins=None)


def test_checkpoint_in_other_storage_is_opened(tmp_path: Path) -> None:
    plugins = PluginManager(read_environment({"DETCORE_HOME": str(tmp_path)}))
    with Database.open(f"sqlite:///{tmp_path / 'detcore.db'}") as database:
        experiment = database.create_experiment(
            config={"checkpoint_storage": spec("http://127.0.0.1:1", "here")}, config_text=None,
            model_dir="/", name="n",
        )  # fmt: skip
        trial = database.create_trial(experiment_id=experiment, hparams={}, seed=0)
        places = {}
        for number, url in enumerate([f"s3://{BUCKET}/here", f"s3://{BUCKET}/there", "file:///x"]):
            database.record_checkpoint(
                CheckpointStarted(uuid=f"c{number}", storage_url=url, steps_completed=1),
                trial_id=trial,
            )
            record = database.get_checkpoint(f"c{number}")
            places[number] = find_recorded_storage(
                record, database=database, home=tmp_path, plugins=plugins
            )
    assert places[0].missing == ("access_key", "secret_key")
    assert isinstance(places[0].spec, dict)
    assert places[0].spec["endpoint_url"] == "http://127.0.0.1:1"
    assert (places[1].spec, places[1].missing) == (f"s3://{BUCKET}/there", ())
    assert places[2].spec == "file:///x"
