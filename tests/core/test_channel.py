"""The channel to a runner that reads, is slow, or has exited."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from detcore.core import Channel
from detcore.errors import WorkerError


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
def pair() -> Any:
    """The runner's end and the worker's, with little room between them."""
    ends = [end.detach() for end in socket.socketpair()]
    for end in ends:
        with socket.socket(fileno=os.dup(end)) as copy:
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    yield ends
    for end in ends:
        os.close(end)


def test_channel_keeps_order(pair: list[int]) -> None:
    events = Channel(pair[1])
    events.send("validation", steps_completed=3, metrics={"loss": float("inf")})
    events.send("finished", state="COMPLETED")
    assert drain(pair[0]) == [
        {"type": "validation", "steps_completed": 3, "metrics": {"loss": float("inf")}},
        {"type": "finished", "state": "COMPLETED"},
    ]
    assert events.has_sent("finished")
    assert not events.has_sent("progress")


def test_full_channel_drops_only_progress(pair: list[int]) -> None:
    events = Channel(pair[1])
    began = time.monotonic()
    for step in range(2000):
        events.send("progress", progress=step)
        if step % 100 == 0:
            events.send("checkpoint", uuid=f"{step:05}", pad="x" * 300)
    assert time.monotonic() - began < 60
    got: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: got.extend(read_all(pair[0])))
    reader.start()
    events.send("finished", state="COMPLETED")
    events.close(timeout_s=10)
    os.close(pair.pop(1))
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


def test_channel_sends_message_larger_than_buffer(pair: list[int]) -> None:
    events = Channel(pair[1])
    events.send("validation", text="x" * 50_000)
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.extend(read_all(pair[0])))
    reader.start()
    events.close(timeout_s=10)
    os.close(pair.pop(1))
    reader.join()
    assert len(got[0]["text"]) == 50_000


def test_channel_ignores_missing_reader(pair: list[int]) -> None:
    events = Channel(pair[1])
    os.close(pair.pop(0))
    for _ in range(3):
        events.send("finished", state="COMPLETED")
    events.close()


@pytest.mark.parametrize("kind", ["none", "closed", "file"])
def test_channel_ignores_non_sockets(kind: str, tmp_path: Path) -> None:
    fd: int | None = None
    if kind == "closed":
        fd = os.dup(0)
        os.close(fd)
    if kind == "file":
        fd = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    Channel(fd).send("training", loss=1)
    if kind == "file":
        assert (tmp_path / "file").read_bytes() == b""
        assert fd is not None
        os.close(fd)


def test_channel_is_not_inherited_by_children(pair: list[int]) -> None:
    os.set_inheritable(pair[1], True)
    Channel(pair[1])
    assert not os.get_inheritable(pair[1])


def reply(pair: list[int], *replies: dict[str, Any]) -> None:
    os.write(pair[0], b"".join(json.dumps(reply).encode() + b"\n" for reply in replies))


def test_channel_distinguishes_late_answers(pair: list[int]) -> None:
    channel = Channel(pair[1])
    assert channel.query("checkpoint", timeout_s=0.01, uuid="a") is None
    late = {"type": "answer", "number": 1, "answer": {"state": "old"}}
    length = {"type": "train", "length": 20}
    reply(pair, late, length, {"type": "answer", "number": 2, "answer": {"state": "new"}})
    assert channel.query("checkpoint", uuid="b") == {"state": "new"}
    assert channel.wait_for_length() == 20
    reply(pair, {"type": "answer", "number": 9, "answer": None}, {"type": "end"})
    assert channel.wait_for_length() is None
    questions = [message for message in drain(pair[0]) if message["type"] == "question"]
    assert [(question["number"], question["fields"]) for question in questions] == [
        (1, {"uuid": "a"}),
        (2, {"uuid": "b"}),
    ]


def test_channel_query_without_runner_returns_none(pair: list[int]) -> None:
    channel = Channel(pair[1])
    os.close(pair.pop(0))
    assert channel.query("checkpoint", timeout_s=60, uuid="a") is None
    with pytest.raises(WorkerError, match="the runner of this trial has exited"):
        Channel(pair[0]).wait_for_length()


def test_closed_channel_ignores_reused_descriptor(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    channel = Channel(there.fileno())
    channel.close()
    there.close()
    with (tmp_path / "users.txt").open("w"):
        channel.send("status", status="done")
    assert (tmp_path / "users.txt").read_text() == ""
    here.close()
