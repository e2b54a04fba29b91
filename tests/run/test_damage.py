"""Resuming when the newest checkpoint is damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_damage import CONTENT, MANIFEST
from storage_servers import ACCESS_KEY, BUCKET, SECRET_KEY, moto, s3_settings
from toy_command import MODEL_DIR, Detcore

from detcore_storage import S3Storage


def newest_first(detcore: Detcore) -> list[Path]:
    paths = sorted(detcore.committed(), key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in paths]


def interrupted_run(detcore: Detcore, **changes: object) -> list[Path]:
    """Train 20 of 40 batches, with a checkpoint every 10; the newest first."""
    config = detcore.config(searcher__max_length__batches=20, **changes)
    assert detcore("run", config, MODEL_DIR).code == 0
    # The search method requests more, as after an interrupt of a resumed experiment.
    import sqlite3

    with sqlite3.connect(detcore.home / "detcore.db") as connection:
        connection.execute("UPDATE experiments SET state = 'PAUSED'")
        connection.execute("DELETE FROM search_events")
        connection.execute(
            "UPDATE experiments SET config = replace(config, '\"batches\":20', '\"batches\":40')"
        )
        connection.execute(
            "UPDATE experiments SET config = replace(config, '\"batches\": 20', '\"batches\": 40')"
        )
    connection.close()
    return newest_first(detcore)


def change(path: Path, how: Callable[[bytes], bytes]) -> None:
    path.write_bytes(how(path.read_bytes()))


def link_out(path: Path) -> None:
    moved = path.rename(path.parents[1] / path.name)
    path.symlink_to(moved)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flip": lambda folder: change(folder / "toy.json", CONTENT["middle bit"]),
    "cut": lambda folder: change(folder / "toy.json", CONTENT["cut by one byte"]),
    "file gone": lambda folder: (folder / "toy.json").unlink(),
    "link": lambda folder: link_out(folder / "toy.json"),
    "manifest changed": lambda folder: change(
        folder / "manifest.json", MANIFEST["another digest"][0]
    ),
    "manifest cut": lambda folder: change(folder / "manifest.json", MANIFEST["cut to half"][0]),
    "manifest gone": lambda folder: (folder / "manifest.json").unlink(),
    "all gone": shutil.rmtree,
}


@pytest.mark.soak
@pytest.mark.parametrize("damage", DAMAGES)
def test_previous_checkpoint_is_used_with_notice(detcore: Detcore, damage: str) -> None:
    newest, before, *_ = interrupted_run(detcore)
    DAMAGES[damage](newest)

    finished = detcore.run_checked("run", "--resume", 1)
    if damage == "flip":  # names and sizes are right: only the restore finds it
        assert f". Resuming from the previous checkpoint: {before.name}" in finished.stdout
        assert newest.name in finished.stdout
    else:
        assert f"checkpoint {newest.name} is damaged: " in finished.stderr
        assert f"The trial resumes from the previous checkpoint: {before.name}" in finished.stderr

    listed = detcore("checkpoint", "list")
    assert [line for line in listed.stdout.splitlines() if "DAMAGED" in line], listed.stdout
    repaired = detcore.run_failing("checkpoint", "repair", newest.name)
    assert "damaged" in repaired.stdout


def test_two_damaged_checkpoints_are_skipped(detcore: Detcore) -> None:
    newest, second, third, *_ = interrupted_run(detcore, min_checkpoint_period__batches=5)
    DAMAGES["manifest cut"](newest)
    DAMAGES["file gone"](second)
    finished = detcore.run_checked("run", "--resume", 1)
    lines = [line for line in finished.stderr.splitlines() if " is damaged: " in line]
    damaged = [f"checkpoint {path.name} is damaged: " for path in (newest, second)]
    assert [line[: len(start)] for line, start in zip(lines, damaged, strict=True)] == damaged
    assert all(
        line.partition("resumes from the previous checkpoint: ")[2].startswith(third.name)
        for line in lines
    )


def test_repair_recovers_restored_checkpoints(detcore: Detcore) -> None:
    checkpoints = interrupted_run(detcore)
    contents = {}
    for checkpoint in checkpoints:
        contents[checkpoint] = (checkpoint / "toy.json").read_bytes()
        (checkpoint / "toy.json").write_text("{}")
    finished = detcore.run_failing("run", "--resume", 1)
    assert "so the trial cannot resume" in finished.stderr + finished.stdout

    for checkpoint, data in contents.items():
        (checkpoint / "toy.json").write_bytes(data)
    (checkpoints[0] / "a note").write_text("mine")
    repaired = detcore.run_checked("checkpoint", "repair", "--all")
    assert repaired.stdout.count("ok, recorded as COMPLETED") == len(checkpoints)
    assert "a note: does not belong to the checkpoint" in repaired.stdout
    assert (checkpoints[0] / "a note").exists()
    detcore.run_checked("checkpoint", "repair", checkpoints[0].name, "--remove-strays")
    assert not (checkpoints[0] / "a note").exists()
    detcore.run_checked("run", "--resume", 1)


SCRIPT = """
from detcore import core
with core.init() as context:
    steps = 0
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            steps = int((path / "steps").read_text())
    print("from", steps, flush=True)
    while steps < 3:
        steps += 1
        context.train.report_training_metrics(steps, {"loss": 1.0})
        with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
            (path / "steps").write_text(str(steps))
    raise SystemExit(75)
"""


@pytest.mark.soak
@pytest.mark.parametrize("is_script", [True, False])
def test_damage_in_bucket_costs_no_restart(detcore: Detcore, is_script: bool) -> None:
    changed_file = "steps" if is_script else "toy.json"
    with moto() as url:
        settings = s3_settings(url, "runs")
        storage = {
            "type": "s3", "bucket": BUCKET, "prefix": "runs", "endpoint_url": url,
            "access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "save_trial_latest": 9,
        }  # fmt: skip
        if is_script:
            (detcore.tmp_path / "train.py").write_text(SCRIPT)
            config = detcore.config(entrypoint="python3 train.py", checkpoint_storage=storage)
            assert detcore("run", config, detcore.tmp_path).code == 75
        else:
            interrupted_run(detcore, checkpoint_storage=storage)
        listed = json.loads(detcore("checkpoint", "list", "--json").stdout)
        by_steps = sorted(listed, key=lambda row: row["steps_completed"])
        before, newest = (str(row["uuid"]) for row in by_steps[-2:])
        bucket = S3Storage(settings)
        data = bucket.read(f"{newest}/{changed_file}")
        bucket.replace(f"{newest}/{changed_file}", bytes([data[0] ^ 1]) + data[1:])

        resumed = detcore("run", "--resume", 1)
    assert resumed.code == (75 if is_script else 0), resumed.stdout + resumed.stderr
    assert f". Resuming from the previous checkpoint: {before}" in resumed.stdout
    (trial,) = json.loads(detcore("experiment", "describe", 1, "--json").stdout)["trials"]
    assert trial["num_restarts"] == 0
