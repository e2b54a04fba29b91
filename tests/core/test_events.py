"""Telling a runner that reads, that is slow, and that is gone."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from detcore.core import EventPipe


def drain(fd: int) -> list[dict[str, Any]]:
    os.set_blocking(fd, False)
    data = b""
    while True:
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            break
        if not chunk:
            break
        data += chunk
    return [json.loads(line) for line in data.splitlines()]


@pytest.fixture
def pipe() -> Any:
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    fds = [read, write]
    yield fds
    for fd in fds:
        os.close(fd)


def test_events_arrive_in_order(pipe: list[int]) -> None:
    events = EventPipe(pipe[1])
    events.send("validation", steps_completed=3, metrics={"loss": float("inf")})
    events.send("finished", state="COMPLETED")
    assert drain(pipe[0]) == [
        {"type": "validation", "steps_completed": 3, "metrics": {"loss": float("inf")}},
        {"type": "finished", "state": "COMPLETED"},
    ]
    assert events.has_sent("finished")
    assert not events.has_sent("progress")


def test_a_full_pipe_drops_progress_only_and_never_waits(pipe: list[int]) -> None:
    events = EventPipe(pipe[1])
    began = time.monotonic()
    for step in range(2000):
        events.send("progress", progress=step)
        if step % 100 == 0:
            events.send("checkpoint", uuid=f"{step:05}", pad="x" * 300)
    assert time.monotonic() - began < 60
    got: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: got.extend(read_all(pipe[0])))
    reader.start()
    events.close(timeout_s=10)
    events.send("finished", state="COMPLETED")
    os.close(pipe.pop(1))
    reader.join()
    checkpoints = [event["uuid"] for event in got if event["type"] == "checkpoint"]
    assert checkpoints == [f"{step:05}" for step in range(0, 2000, 100)]
    steps = [event["progress"] for event in got if event["type"] == "progress"]
    assert steps == sorted(steps)
    assert 0 < len(steps) < 2000
    assert got[-1] == {"type": "finished", "state": "COMPLETED"}


def read_all(fd: int) -> list[dict[str, Any]]:
    data = b""
    while chunk := os.read(fd, 1 << 16):
        data += chunk
    return [json.loads(line) for line in data.splitlines()]


def test_one_event_larger_than_the_pipe_arrives_whole(pipe: list[int]) -> None:
    events = EventPipe(pipe[1])
    events.send("validation", text="x" * 50_000)
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.extend(read_all(pipe[0])))
    reader.start()
    events.close(timeout_s=10)
    os.close(pipe.pop(1))
    reader.join()
    assert len(got[0]["text"]) == 50_000


def test_a_reader_that_is_gone_is_no_error(pipe: list[int]) -> None:
    events = EventPipe(pipe[1])
    os.close(pipe.pop(0))
    for _ in range(3):
        events.send("finished", state="COMPLETED")
    events.close()


@pytest.mark.parametrize("kind", ["none", "closed", "file"])
def test_what_is_no_pipe_is_left_alone(kind: str, tmp_path: Path) -> None:
    fd: int | None = None
    if kind == "closed":
        fd = os.dup(0)
        os.close(fd)
    if kind == "file":
        fd = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    EventPipe(fd).send("training", loss=1)
    if kind == "file":
        assert (tmp_path / "file").read_bytes() == b""
        assert fd is not None
        os.close(fd)


def test_children_do_not_hold_the_pipe(pipe: list[int]) -> None:
    os.set_inheritable(pipe[1], True)
    EventPipe(pipe[1])
    assert not os.get_inheritable(pipe[1])
