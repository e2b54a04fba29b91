"""Peers without the job's key are rejected, and their data is not decoded."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from detcore.distributed import DistributedContext, handshake
from detcore.distributed import join as meeting
from detcore.distributed.wire import CALL, LinkLostError, RankChannel
from detcore.errors import DistributedError

ACROSS = {
    "rank": 0, "size": 2, "local_rank": 0, "local_size": 1, "cross_rank": 0, "cross_size": 2,
    "chief_ip": "127.0.0.1", "connect_timeout_s": 0.3,
}  # fmt: skip


def test_strangers_get_no_data_and_are_logged(ranks: Any, free_port: int) -> None:
    lines, messages = ranks("strangers", 2, port=free_port)
    assert isinstance(messages, list), messages  # the error of a rank that failed
    assert messages[:5] == [""] * 5  # silence, HTTP, a huge length, zeros, half a proof
    assert "could not join rank 0" in messages[5]
    assert "it hung up while the job's key was being proven" in messages[5]
    assert messages[6:] == [""]  # a recorded proof
    assert len(lines) >= 7
    assert {line.partition(" was refused: ")[2] for line in lines} == {
        "it does not know the job's key",
        "it hung up",
    }


def test_proof_is_bound_to_challenge_rank_and_key() -> None:
    claim = handshake.Claim(3, 8, handshake.new_nonce(), handshake.new_nonce())
    message = claim.encode_claim(b"key")
    assert handshake.read_claim(b"key", claim.challenge, message) == claim
    assert handshake.read_claim(b"key", handshake.new_nonce(), message) is None
    assert handshake.read_claim(b"other", claim.challenge, message) is None
    assert handshake.read_claim(b"key", claim.challenge, b"\0\0\0\2" + message[4:]) is None
    for_questions = message[:8] + b"\0\0\0\1" + message[12:]
    assert handshake.read_claim(b"key", claim.challenge, for_questions) is None
    verdict = claim.encode_verdict(b"key", handshake.ACCEPTED)
    assert claim.read_verdict(b"key", verdict) == handshake.ACCEPTED
    assert claim.read_verdict(b"other", verdict) is None
    # The message of a listener does not prove a caller, so it cannot be reflected.
    assert verdict[1:] not in message
    assert len(set(claim.derive_session_keys(b"key"))) == 2


def _pair() -> tuple[socket.socket, RankChannel]:
    """Return a raw socket and a channel with checksums, the two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        raw = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    return raw, RankChannel(accepted, (b"out", b"in"))


@pytest.mark.parametrize("change", ["nothing", "a bit", "twice", "length", "body", "garbage"])
def test_tcp_frames_cannot_be_changed_or_repeated(change: str) -> None:
    raw, receiver = _pair()
    to_raw, sender = _pair()
    sender._keys = (b"in", b"out")
    sender.send(CALL, {"x": 1}, [b"abc"], deadline=time.monotonic() + 5)
    data = bytearray(to_raw.recv(1000))
    if change == "a bit":
        data[-34] ^= 1  # in the body, before the checksum
    if change == "twice":
        data = data * 2
    if change == "length":
        data[8:12] = b"\xff" * 4
    if change == "body":
        data[12] = 0x10  # an exabyte, for which no memory may be allocated
    if change == "garbage":
        data[:4] = b"GET "
    raw.sendall(data)
    deadline = time.monotonic() + 5
    try:
        if change in ("nothing", "twice"):
            frame = receiver.wait(deadline)
            assert frame is not None
            assert (frame.meta, bytes(frame.body)) == ({"x": 1}, b"abc")
        if change != "nothing":
            with pytest.raises(LinkLostError, match=r"changed on its way|invalid frame"):
                receiver.wait(deadline)
    finally:
        for end in (raw, to_raw, sender, receiver):
            end.close()


def test_port_in_use_raises(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        options: dict[str, Any] = {**ACROSS, "key": "k", "pub_port": free_port - 2}
        message = rf"cannot listen on 127.0.0.1:{free_port}: .*in use.*\n.*\n.*port_offset"
        with pytest.raises(DistributedError, match=message):
            DistributedContext(**options, port_offset=2)


def test_missing_ranks_are_named() -> None:
    place: dict[str, Any] = {"rank": 0, "size": 3, "local_rank": 0, "local_size": 3}
    place |= {"cross_rank": 0, "cross_size": 1, "key": "nobody comes", "connect_timeout_s": 0.2}
    with pytest.raises(DistributedError, match=r"ranks 1, 2 of 3 did not join in time"):
        DistributedContext(**place)
    place |= {"rank": 1, "local_rank": 1}
    with pytest.raises(DistributedError, match=r"rank 1 could not join rank 0 at /"):
        DistributedContext(**place)


def test_second_chief_with_same_name_raises() -> None:
    place: dict[str, Any] = {"rank": 0, "size": 2, "local_rank": 0, "local_size": 2}
    place |= {"cross_rank": 0, "cross_size": 1, "key": f"twice {os.getpid()}"}
    errors: list[str] = []

    def open_one() -> None:
        try:
            DistributedContext(**place, connect_timeout_s=0.5)
        except DistributedError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=open_one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(error.partition(" ")[0] for error in errors) == ["another", "rank"]


def test_socket_directory_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = meeting.make_private_directory()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    place = meeting.MeetingPlace(b"a test of the folder")
    Path(place.socket_path).write_text("left by a dead process")
    place.claim_name()
    assert not Path(place.socket_path).exists()
    place.release()

    monkeypatch.setattr(meeting, "Path", lambda _: tmp_path)
    (tmp_path / folder.name).mkdir(mode=0o755)
    with pytest.raises(
        DistributedError, match=r"not a private directory of this user.*\n.*\n.*chmod 700"
    ):
        meeting.make_private_directory()
