"""The driver's connection to the actor of one worker."""

from __future__ import annotations

import queue
import signal
import threading
import time
from typing import Any

import ray
from ray import exceptions

from detcore_ray.driver_process.cluster import Cluster
from detcore_ray.messages import Channel
from detcore_ray.worker_node.node_processes import end_process
from detcore_ray.worker_node.worker_actor import Batch

_RETRY_DELAY_S = 0.2
_MARGIN_S = 1.0


class RankLink:
    """Passes a worker's output and events to the runner, and the runner's orders to the worker.

    Args:
        rank: Rank of the worker.
        actor: Handle of its actor, whose worker has started.
        node_id: Ray's id of its node.
        process: Description of the worker from
            `detcore_ray.worker_node.node_processes.describe_process`.
        channel: Channel to the runner.
        cluster: Reports the state of nodes.

    Attributes:
        process: The argument `process`.
    """

    def __init__(
        self,
        rank: int,
        actor: Any,
        *,
        node_id: str,
        process: dict[str, Any],
        channel: Channel,
        cluster: Cluster,
    ) -> None:
        self.process = process
        self._rank = rank
        self._actor = actor
        self._node_id = node_id
        self._channel = channel
        self._cluster = cluster
        self._orders: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._answered_at = time.monotonic()
        self._listener = threading.Thread(target=self._receive_batches, name=f"receive-{rank}")
        self._sender = threading.Thread(target=self._send_orders, name=f"send-{rank}", daemon=True)

    def start(self) -> None:
        """Start receiving and sending."""
        self._listener.start()
        self._sender.start()

    def send_order(self, kind: str, value: Any) -> None:
        """Send an order to the worker; see `RankActor.deliver_order`."""
        self._orders.put((kind, value))

    def join(self, timeout_s: float) -> bool:
        """Wait for the worker; return whether it has certainly exited."""
        self._listener.join(timeout_s)
        return not self._listener.is_alive()

    def _receive_batches(self) -> None:
        number, clock = 0, None
        try:
            while True:
                try:
                    batch: Batch = ray.get(self._actor.take_batch.remote(number, clock))
                except exceptions.ActorUnavailableError:
                    # The connection broke, and Ray does not yet know the state of the actor.
                    time.sleep(_RETRY_DELAY_S)
                    continue
                self._answered_at = time.monotonic()
                number, clock = number + 1, batch.clock
                if batch.lines:
                    self._channel.send_message("lines", rank=self._rank, lines=batch.lines)
                # The log comes before the events, because a request may refer to its lines.
                for start, lines in batch.log:
                    self._channel.send_message("log", start=start, lines=lines.decode("ascii"))
                for event in batch.events:
                    self._channel.send_message("event", fields=event)
                if batch.code is not None:
                    self._channel.send_message("ended", rank=self._rank, code=batch.code)
                    return
        except Exception as error:  # noqa: BLE001  (any error ends the connection)
            self._report_loss(error)
        finally:
            self._orders.put(None)

    def _report_loss(self, error: Exception) -> None:
        """Report that the worker has exited, once that is certain."""
        why, is_node = self._cluster.explain_loss(self._node_id, error)
        if not end_process(self.process) and is_node:
            # It may still run behind a broken network, until its lease expires.
            left_s = self._answered_at + self._cluster.settings.lease_s + _MARGIN_S
            left_s -= time.monotonic()
            if left_s > 0:
                self._channel.send_message(
                    "notice",
                    text=f"rank {self._rank}: {why}; its worker exits within {left_s:.0f} s",
                )
                time.sleep(left_s)
        self._channel.send_message("lost", text=f"rank {self._rank} was lost: {why}")
        self._channel.send_message("ended", rank=self._rank, code=-signal.SIGKILL)

    def _send_orders(self) -> None:
        number = 0
        while (order := self._orders.get()) is not None:
            while True:
                try:
                    ray.get(self._actor.deliver_order.remote(number, *order))
                except exceptions.ActorUnavailableError:
                    time.sleep(_RETRY_DELAY_S)
                    continue
                except Exception:  # noqa: BLE001  (the other thread reports its end)
                    return
                break
            number += 1
