"""The launcher, which runs in the runner's process and never imports Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from detcore.environment import child_environment
from detcore.errors import RunError, WorkerError
from detcore.launch import OutputSink, describe_exit
from detcore.launch.nodes import read_log_header
from detcore.types import TrialInfo, TrialSettings
from detcore_ray.messages import Channel, send_descriptors
from detcore_ray.ray_settings import RaySettings
from detcore_ray.worker_group import RayWorkerGroup

# Disable usage statistics, keep device variables of actors without GPUs, do not buffer output.
_DRIVER_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONUNBUFFERED": "1",
}
_CLOSE_TIMEOUT_S = 60.0


class RayLauncher:
    """Runs each trial as a placement group of a Ray cluster, with one actor per worker.

    A separate driver process joins the cluster, so the runner does not import Ray, and the runner's
    work does not delay Ray. If the runner is killed, the driver kills the workers, and holds the
    experiment's lock until they have exited.

    Args:
        address: As in `RaySettings`.
        **settings: The other fields of `RaySettings`.

    Raises:
        RunError: If a setting is unknown or invalid.
        WorkerError: If the driver process cannot be started.
    """

    def __init__(self, address: str | None = None, **settings: Any) -> None:
        try:
            self._settings = RaySettings(address=address, **settings)
        except ValidationError as error:
            raise RunError(
                "\n".join(map(_describe_fault, error.errors(include_url=False)))
            ) from error
        self._driver = _Driver(self._settings)

    def check_trial(self, settings: TrialSettings, *, slots: int) -> None:
        """Check that the trials fit the cluster, without other work.

        Args:
            settings: The settings of the trials.
            slots: Number of workers of each trial; >= 1.

        Raises:
            WorkerError: If the cluster cannot be joined, or is too small for a trial.
        """
        channel = self._driver.open_channel(())
        try:
            channel.send_message("check", slots=slots)
            answer = next(channel.read_messages(), None)
        finally:
            channel.close()
        if answer is None:
            raise WorkerError(f"{self._driver.explain_exit()}\nStart the experiment again.")
        if answer["kind"] == "refused":
            raise WorkerError(str(answer["error"]))

    def start(
        self,
        info: TrialInfo,
        *,
        home: Path,
        slots: int = 1,
        keep_open: tuple[int, ...] = (),
        on_output: OutputSink,
        disabled_plugins: frozenset[str] = frozenset(),
        allowed_plugins: frozenset[str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> RayWorkerGroup:
        """Start the workers of a trial on the nodes that Ray selects.

        Returns when the workers run, or when they must wait for resources. Waiting workers have the
        process id 0, and the wait is reported on rank 0's standard error.

        Args:
            info: The trial.
            home: Directory of the records and default checkpoints.
            slots: Number of workers; >= 1.
            keep_open: File descriptors to hold open while any of the workers may run.
            on_output: Called from a thread with the rank, ``"stdout"`` or ``"stderr"``, and each
                line.
            disabled_plugins: Plugins that are also disabled in the workers.
            allowed_plugins: The only plugins that are enabled, or None for all.
            variables: Additional environment variables for all workers.

        Raises:
            WorkerError: If the cluster cannot be joined or is too small, or if a worker cannot be
                started.
        """
        if not self._driver.is_running:
            # Its workers exit before new workers of the same trial start.
            self._driver.close()
            self._driver = _Driver(self._settings)
        driver = self._driver
        channel = driver.open_channel(keep_open)
        channel.send_message(
            "start",
            info=dataclasses.asdict(info),
            log_header=read_log_header(info).decode(),
            home=str(home),
            slots=slots,
            job=secrets.token_hex(4),
            key=secrets.token_hex(32),
            environment=child_environment({}),
            disabled=sorted(disabled_plugins),
            allowed=None if allowed_plugins is None else sorted(allowed_plugins),
            variables=dict(variables or {}),
        )
        return RayWorkerGroup(
            channel,
            slots,
            info=info,
            on_output=on_output,
            explain_exit=driver.explain_exit,
        )

    def close(self) -> None:
        """Leave the cluster, and stop it if it was started here."""
        self._driver.close()


def _describe_fault(error: ErrorDetails) -> str:
    """Return an error message for an invalid setting."""
    name = ".".join(map(str, ("launcher", *error["loc"])))
    return f"{name}: {error['msg'].removeprefix('Value error, ')}"


class _Driver:
    """The driver process; see `detcore_ray.driver_process.driver`.

    Raises:
        WorkerError: If the process cannot be started.
    """

    def __init__(self, settings: RaySettings) -> None:
        self._control, driver_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        with driver_end:
            try:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "detcore_ray.driver_process.driver",
                        str(driver_end.fileno()),
                    ],
                    env=child_environment({}, defaults=_DRIVER_ENVIRONMENT),
                    pass_fds=[driver_end.fileno()],
                    stdin=subprocess.PIPE,
                    stdout=self._output,
                    stderr=self._output,
                    # The runner handles Ctrl-C. A kill of the runner's process group must not
                    # kill the process that ends the workers.
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                self._output.close()
                raise WorkerError(f"detcore-ray did not start {sys.executable}: {error}") from error
        if self._process.stdin is not None:
            # A runtime environment may contain secrets, so it is not on the command line.
            with contextlib.suppress(BrokenPipeError), self._process.stdin as file:
                file.write(settings.model_dump_json().encode())

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def open_channel(self, keep_open: tuple[int, ...]) -> Channel:
        """Open a channel for one trial; the driver holds the descriptors open until the trial ends.

        Raises:
            WorkerError: If the driver has exited.
        """
        runner_end, driver_end = socket.socketpair()
        try:
            with driver_end:
                send_descriptors(self._control, [driver_end.fileno(), *keep_open])
        except OSError as error:
            runner_end.close()
            raise WorkerError(f"{self.explain_exit()}\nStart the experiment again.") from error
        return Channel(runner_end)

    def explain_exit(self) -> str:
        """Return a message about the driver's exit, with its last output."""
        try:
            outcome = describe_exit(self._process.wait(1.0))
        except subprocess.TimeoutExpired:
            outcome = "has closed the channel"
        self._output.seek(0)
        output = self._output.read()[-2000:].decode("utf-8", "replace").strip().splitlines()[-5:]
        return "\n".join([f"the process that speaks to Ray {outcome}", *output])

    def close(self) -> None:
        """Wait until the driver exits, after the end of its trials."""
        self._control.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
