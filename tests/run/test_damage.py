"""Resuming when the newest checkpoint is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from toy_command import MODEL_DIR, Detcore


def newest_first(detcore: Detcore) -> list[Path]:
    paths = sorted(detcore.committed(), key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in paths]


def interrupted_run(detcore: Detcore) -> list[Path]:
    """Train 20 of 40 batches, with a checkpoint every 10; the newest first."""
    config = detcore.config(searcher__max_length={"batches": 20})
    assert detcore("run", config, MODEL_DIR).code == 0
    checkpoints = newest_first(detcore)
    assert len(checkpoints) >= 2
    # The search method wants more: what a resumed experiment finds after an interrupt.
    import sqlite3

    with sqlite3.connect(detcore.home / "detcore.db") as connection:
        connection.execute("UPDATE experiments SET state = 'PAUSED'")
        connection.execute(
            "UPDATE experiments SET config = replace(config, '\"batches\":20', '\"batches\":40')"
        )
        connection.execute(
            "UPDATE experiments SET config = replace(config, '\"batches\": 20', '\"batches\": 40')"
        )
    connection.close()
    return checkpoints


@pytest.mark.parametrize("damage", ["flip", "manifest", "all gone"])
def test_the_one_before_is_used_and_it_is_said(detcore: Detcore, damage: str) -> None:
    newest, before, *_ = interrupted_run(detcore)
    state = newest / "toy.json"
    if damage == "flip":
        data = bytearray(state.read_bytes())
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    elif damage == "manifest":
        (newest / "manifest.json").write_text("{}")
    else:
        shutil.rmtree(newest)

    finished = detcore("run", "--resume", 1)
    assert finished.code == 0, finished.stdout + finished.stderr
    assert f"Going on from the one before: {before.name}" in finished.stdout
    assert newest.name in finished.stdout

    listed = detcore("checkpoint", "list")
    assert [line for line in listed.stdout.splitlines() if "DAMAGED" in line], listed.stdout
    repaired = detcore("checkpoint", "repair", newest.name)
    assert repaired.code == 1
    assert "damaged" in repaired.stdout


def test_none_left_is_an_error_and_repair_takes_back_what_is_whole_again(detcore: Detcore) -> None:
    checkpoints = interrupted_run(detcore)
    kept = {}
    for checkpoint in checkpoints:
        kept[checkpoint] = (checkpoint / "toy.json").read_bytes()
        (checkpoint / "toy.json").write_text("{}")
    finished = detcore("run", "--resume", 1)
    assert finished.code == 1
    assert "nothing to go on from" in finished.stderr + finished.stdout

    for checkpoint, data in kept.items():
        (checkpoint / "toy.json").write_bytes(data)
    (checkpoints[0] / "a note").write_text("mine")
    repaired = detcore("checkpoint", "repair", "--all")
    assert repaired.code == 0, repaired.stdout
    assert repaired.stdout.count("whole, recorded as COMPLETED") == len(checkpoints)
    assert "a note: none of it" in repaired.stdout
    assert (checkpoints[0] / "a note").exists()
    repaired = detcore("checkpoint", "repair", checkpoints[0].name, "--remove-strays")
    assert repaired.code == 0
    assert not (checkpoints[0] / "a note").exists()
    finished = detcore("run", "--resume", 1)
    assert finished.code == 0, finished.stdout + finished.stderr
