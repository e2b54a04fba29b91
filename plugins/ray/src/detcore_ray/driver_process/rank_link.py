"""A worker's actor, as the process that speaks to Ray sees it."""

from __future__ import annotations

import queue
import signal
import threading
import time
from typing import Any

import ray
from ray import exceptions

from detcore_ray.driver_process.cluster import Cluster
from detcore_ray.messages import Line
from detcore_ray.worker_node.node_processes import end_process
from detcore_ray.worker_node.worker_actor import Batch

_AGAIN_S = 0.2
_MARGIN_S = 1.0


class RankLink:
    """Connection of a worker to the runner: output and events one way, orders the other.

    Args:
        rank: Which worker.
        actor: Its actor's handle; the worker has begun.
        node_id: Ray's name of its node.
        process: The worker, as `detcore_ray.worker_node.node_processes.describe_process` told.
        line: To the runner.
        cluster: Knows what became of nodes.

    Attributes:
        process: As given.
    """

    def __init__(
        self,
        rank: int,
        actor: Any,
        *,
        node_id: str,
        process: dict[str, Any],
        line: Line,
        cluster: Cluster,
    ) -> None:
        self.process = process
        self._rank = rank
        self._actor = actor
        self._node_id = node_id
        self._line = line
        self._cluster = cluster
        self._orders: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._answered_at = time.monotonic()
        self._listener = threading.Thread(target=self._listen, name=f"listen-{rank}")
        self._teller = threading.Thread(target=self._tell, name=f"tell-{rank}", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._listener.start()
        self._teller.start()

    def order(self, kind: str, value: Any) -> None:
        """Hand something on to the worker; see `RankActor.tell`."""
        self._orders.put((kind, value))

    def join(self, timeout_s: float) -> bool:
        """Wait for the worker's end; return whether it has ended, and is surely gone."""
        self._listener.join(timeout_s)
        return not self._listener.is_alive()

    def _listen(self) -> None:
        number, heard = 0, None
        try:
            while True:
                try:
                    batch: Batch = ray.get(self._actor.take.remote(number, heard))
                except exceptions.ActorUnavailableError:
                    # The connection broke, and Ray does not know yet what became of the actor.
                    time.sleep(_AGAIN_S)
                    continue
                self._answered_at = time.monotonic()
                number, heard = number + 1, batch.clock
                if batch.lines:
                    self._line.say("lines", rank=self._rank, lines=batch.lines)
                # Before the events: a question may refer to lines of the log.
                for start, lines in batch.log:
                    self._line.say("log", start=start, lines=lines.decode("ascii"))
                for event in batch.events:
                    self._line.say("event", fields=event)
                if batch.code is not None:
                    self._line.say("ended", rank=self._rank, code=batch.code)
                    return
        except Exception as error:  # noqa: BLE001  (whatever it is, the worker is not heard again)
            self._lost(error)
        finally:
            self._orders.put(None)

    def _lost(self, error: Exception) -> None:
        """Say that the worker is gone, once that is sure."""
        why, is_node = self._cluster.why_lost(self._node_id, error)
        if not end_process(self.process) and is_node:
            # It may still run behind a broken network: wait until its lease has ended it there.
            left_s = self._answered_at + self._cluster.settings.lease_s + _MARGIN_S
            left_s -= time.monotonic()
            if left_s > 0:
                self._line.say(
                    "notice",
                    text=f"rank {self._rank}: {why}; its worker has surely ended in {left_s:.0f} s",
                )
                time.sleep(left_s)
        self._line.say("lost", text=f"rank {self._rank} was lost: {why}")
        self._line.say("ended", rank=self._rank, code=-signal.SIGKILL)

    def _tell(self) -> None:
        number = 0
        while (order := self._orders.get()) is not None:
            while True:
                try:
                    ray.get(self._actor.tell.remote(number, *order))
                except exceptions.ActorUnavailableError:
                    time.sleep(_AGAIN_S)
                    continue
                except Exception:  # noqa: BLE001  (its end is told by the other thread)
                    return
                break
            number += 1
