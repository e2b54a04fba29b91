"""Run ranks as real processes: ``python scenarios.py NAME SIZE OPTIONS`` forks and prints results.

A scenario gets a rank's place and options, and returns what JSON can hold. An exception of a rank
becomes its result. The parent ends whatever still runs when the time is over.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from detcore.distributed import DistributedContext
from detcore.errors import DistributedError

Scenario = Callable[[int, int, dict[str, Any]], Any]


def numbers(rank: int, nodes: list[int]) -> dict[str, int]:
    """Return the six numbers of a rank, given the number of workers on each node."""
    node = next(i for i in range(len(nodes)) if rank < sum(nodes[: i + 1]))
    local_rank = rank - sum(nodes[:node])
    return {
        "rank": rank, "size": sum(nodes), "local_rank": local_rank, "local_size": nodes[node],
        "cross_rank": node, "cross_size": len(nodes),
    }  # fmt: skip


def open_context(rank: int, size: int, options: dict[str, Any]) -> DistributedContext:
    nodes = options.get("nodes", [size])
    return DistributedContext(
        **{"connect_timeout_s": 20, **numbers(rank, nodes), **options.get("context", {})}
    )


def collectives(rank: int, size: int, options: dict[str, Any]) -> Any:
    with open_context(rank, size, options) as context:
        values: list[Any] = [
            context.allgather({"rank": rank, ("a", 1): float("nan") if rank else None})[0]["rank"],
            context.gather(rank * 10),
            context.broadcast([rank, "b"]),
            context.allgather_local(rank),
            context.gather_local(rank),
            context.broadcast_local(rank),
        ]
        context.barrier()
        # Arrays: small, large, not contiguous, read only, empty, and of objects.
        large = np.arange(300_000, dtype=np.float32) + rank
        frozen = np.full(50_000, rank)
        frozen.setflags(write=False)
        mixed: dict[str, Any] = {
            "large": large, "some": large[::3], "frozen": frozen, "none": np.zeros((0, 3)),
            "text": np.array(["a", None], dtype=object), "bytes": b"x" * 200_000,
        }  # fmt: skip
        for other, got in enumerate(context.allgather(mixed)):
            assert np.array_equal(got["large"], np.arange(300_000, dtype=np.float32) + other)
            assert np.array_equal(got["some"], got["large"][::3])
            assert got["frozen"][-1] == other
            assert got["none"].shape == (0, 3)
            assert got["text"][1] is None
            assert got["bytes"] == mixed["bytes"]
            if other != rank:
                got["large"][:] = -1  # a private copy
        context.barrier()
        assert large[0] == rank
        everywhere: Any = context.broadcast(large if rank == 0 else None)
        everywhere[0] = rank
        context.barrier()
        assert everywhere[0] == rank
        return values


def unsendable(rank: int, size: int, options: dict[str, Any]) -> Any:
    """An unpicklable value raises on its rank, and the ranks stay in step."""
    with open_context(rank, size, options) as context:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        errors = []
        for value in (lambda: rank, deep):
            try:
                context.allgather(value)
            except DistributedError as error:
                errors.append(str(error))
        return [errors, context.allgather(rank)]


def forks(rank: int, size: int, options: dict[str, Any]) -> Any:
    """Each rank forks a child that tries to take part. The ranks continue."""
    with open_context(rank, size, options) as context:
        context.barrier()
        pid = os.fork()
        if pid == 0:
            try:
                context.allgather("a child")
            except DistributedError as error:
                os._exit(7 if "a forked child of" in str(error) else 8)
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return [code, context.allgather(rank)]


def thousands(rank: int, size: int, options: dict[str, Any]) -> Any:
    """Return the growth in files, mappings, threads and KiB after thousands of collectives."""
    large = np.zeros(40_000, np.float32)
    with open_context(rank, size, options) as context:

        def some(count: int) -> list[int]:
            for number in range(count):
                context.allgather({"number": number})
                context.allgather((number, large))
                context.broadcast(large)
                context.gather(large)
                context.barrier()
            context.barrier()
            status = Path("/proc/self/status").read_text().split()
            answers = [
                len(os.listdir("/proc/self/fd")),
                len(Path("/proc/self/maps").read_text().splitlines()),
                threading.active_count(),
                int(status[status.index("VmRSS:") + 1]),
            ]
            context.barrier()  # closing a context ends a thread of the other ranks
            return answers

        before = some(50)
        return [after - first for after, first in zip(some(600), before, strict=True)]


def killed_within(rank: int, size: int, options: dict[str, Any]) -> Any:
    """One rank is killed while large arrays are in transit, at a random moment."""
    context = open_context(rank, size, options)
    large = np.full(4_000_000, rank, np.float32)
    context.barrier()
    if rank == options["victim"]:
        threading.Timer(options["after_s"], os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        start = time.monotonic()
        try:
            got = context.allgather(large)
        except DistributedError as error:
            seconds = time.monotonic() - start
            context.close()
            return {**describe(error), "seconds": seconds}
        assert [array[-1] for array in got] == list(range(size))
        assert "/dev/shm" not in Path("/proc/self/maps").read_text()


def one_goes(rank: int, size: int, options: dict[str, Any]) -> Any:
    """One rank exits or fails after a barrier; the other ranks gather, perhaps late."""
    context = open_context(rank, size, options)
    context.barrier()
    if rank == options["victim"]:
        if options["how"] == "killed with a child":
            if os.fork() == 0:
                time.sleep(12)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        if options["how"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif options["how"] == "exits":
            os._exit(3)
        elif options["how"] == "closes":
            context.close()
            return "closed"
        elif options["how"] == "raises":
            with context:
                raise KeyError("no such column")
        elif options["how"] == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
    if rank == options.get("busy"):
        time.sleep(12)
        return "was busy"
    start = time.monotonic()
    try:
        context.allgather(rank)
    except DistributedError as error:
        seconds = time.monotonic() - start
        return {**describe(error), "seconds": seconds, "again": what_barrier_says(context)}
    finally:
        context.close()
    return "all there"


def what_barrier_says(context: DistributedContext) -> str:
    try:
        context.barrier()
    except DistributedError as error:
        return str(error)
    return ""


def astray(rank: int, size: int, options: dict[str, Any]) -> Any:
    """After some common collectives, one rank hangs or calls a different collective."""
    with open_context(rank, size, options) as context:
        for _ in range(options["before"]):
            context.allgather(rank)
        start = time.monotonic()
        try:
            if rank != options["victim"]:
                context.allgather(rank)  # the usual line
            elif options["how"] == "hang":
                time.sleep(options["context"]["timeout_s"] + 8)  # the hanging line
            else:
                getattr(context, options["how"])()  # the diverging line
        except DistributedError as error:
            return {**describe(error), "seconds": time.monotonic() - start}
    return "nothing"


def close_while_waiting(rank: int, size: int, options: dict[str, Any]) -> Any:
    context = open_context(rank, size, options)
    if rank == options["waits"]:
        threading.Timer(1.5, context.close).start()
        start = time.monotonic()
        try:
            context.barrier()
        except DistributedError as error:
            return {**describe(error), "seconds": time.monotonic() - start}
    time.sleep(10)
    context.close()
    return None


def two_after_each_other(rank: int, size: int, options: dict[str, Any]) -> Any:
    got = []
    for number in range(5):
        with open_context(rank, size, options) as context:
            got.append(context.allgather((number, rank)))
    return got


def two_jobs(rank: int, size: int, options: dict[str, Any]) -> Any:
    """Processes of one parent: even ranks are one job, and odd ranks are another job."""
    job, index = f"job {rank % 2}", rank // 2
    options["context"] = {**options.get("context", {}), "key": job}
    with open_context(index, size // 2, options) as context:
        return context.allgather((job, index))


def strangers(rank: int, size: int, options: dict[str, Any]) -> Any:
    """Rank 1 first connects as a stranger in several ways, then correctly."""
    options["context"] = {"key": "secret", "connect_timeout_s": 60, "chief_ip": "127.0.0.1",
                          "pub_port": options["port"]}  # fmt: skip
    options["nodes"] = [1, 1]
    if rank == 0:
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("detcore.distributed").addHandler(handler)
        with open_context(rank, size, options) as context:
            context.allgather(rank)
        return lines
    messages = [stranger(options["port"], text) for text in (
        b"", b"GET / HTTP/1.0\r\n\r\n" * 10, b"\xff" * 76 + b"\xff" * 9000, bytes(76), b"short",
    )]  # fmt: skip
    try:
        wrong = {**options["context"], "key": "guess", "connect_timeout_s": 1}
        open_context(rank, size, {**options, "context": wrong})
    except DistributedError as error:
        messages.append(str(error))
    messages += replay(options["port"])
    with open_context(rank, size, options) as context:
        context.allgather(rank)
    return messages


def stranger(port: int, text: bytes) -> str:
    """Connect, send data, and return the answer to the challenge."""
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=60)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    with connection:
        challenge = connection.recv(32)
        assert len(challenge) == 32
        try:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(100).hex()
        except OSError as error:
            # An early refusal may close the connection at any of the three calls.
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
            return ""


def replay(port: int) -> list[str]:
    """Record the answer of a real caller to a challenge, and replay it."""
    from detcore.distributed.handshake import Claim, new_nonce

    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        claim = Claim(1, 2, connection.recv(32), new_nonce())
        recorded = claim.encode_claim(b"secret")  # never sent on this connection
    return [stranger(port, recorded)]


def horovod(rank: int, size: int, options: dict[str, Any]) -> Any:
    """A fake Horovod that broadcasts through files."""
    import types

    folder, count = Path(options["folder"]), iter(range(100))

    def broadcast_object(value: Any, root_rank: int) -> Any:
        path = folder / f"{next(count)}.json"
        if rank == root_rank:
            is_bytes = isinstance(value, bytes)
            text = json.dumps([is_bytes, value.hex() if is_bytes else value])
            path.with_suffix(".part").write_text(text)
            path.with_suffix(".part").replace(path)
        while not path.exists():
            time.sleep(0.01)
        is_bytes, value = json.loads(path.read_text())
        return bytes.fromhex(value) if is_bytes else value

    place = numbers(rank, options["nodes"])
    hvd = types.SimpleNamespace(**{name: lambda v=v: v for name, v in place.items()})
    hvd.broadcast_object = broadcast_object
    with DistributedContext.from_horovod(hvd, chief_ip="127.0.0.1") as context:
        return [context.allgather(rank), context.allgather_local(rank)]


def listens(rank: int, size: int, options: dict[str, Any]) -> Any:
    """Return the number of network sockets of this process."""
    with open_context(rank, size, options) as context:
        own_value = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
               if os.path.exists(f"/proc/self/fd/{fd}")}  # fmt: skip
        inodes = set()
        for table in ("tcp", "tcp6", "udp", "udp6"):
            rows = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
            inodes |= {f"socket:[{row.split()[9]}]" for row in rows}
        context.barrier()
        return len(own_value & inodes)


def describe(error: BaseException) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "text": str(error),
        "rank": getattr(error, "rank", None),
        "ranks": list(getattr(error, "ranks", ())),
    }


def main() -> None:
    name, size, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    scenario: Scenario = globals()[name]
    readers, pids = [], []
    with tempfile.TemporaryDirectory() as folder:
        options.setdefault("folder", folder)
        for rank in range(size):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    result = scenario(rank, size, options)
                except BaseException as error:  # noqa: BLE001  (it is the result)
                    result = describe(error)
                os.write(writer, json.dumps(result).encode())
                os._exit(0)
            os.close(writer)
            readers.append(reader)
            pids.append(pid)
        results = gather_results(readers, options.get("limit_s", 30))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    print(json.dumps(results))


def gather_results(readers: list[int], limit_s: float) -> list[Any]:
    """Read a result from each pipe; None for a rank that died or is late."""
    texts = dict.fromkeys(readers, b"")
    waiting = set(readers)
    deadline = time.monotonic() + limit_s
    while waiting and (remaining := deadline - time.monotonic()) > 0:
        for reader in select.select(list(waiting), [], [], remaining)[0]:
            data = os.read(reader, 1 << 16)
            texts[reader] += data
            if not data:
                waiting.remove(reader)
    return [json.loads(texts[reader]) if texts[reader] else None for reader in readers]


if __name__ == "__main__":
    main()
