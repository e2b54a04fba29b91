"""The launcher, in the runner's process, where Ray is never imported."""

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
from detcore_ray.messages import Line, send_descriptors
from detcore_ray.ray_settings import RaySettings
from detcore_ray.worker_group import RayWorkerGroup

# No usage statistics; actors without GPUs keep their device variables; unbuffered output.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONUNBUFFERED": "1",
}
_CLOSE_TIMEOUT_S = 60.0


class RayLauncher:
    """Runs each trial as a placement group of a Ray cluster, with one actor per worker.

    A separate process joins the cluster, so that Ray is neither imported into the runner nor
    disturbed by the runner's other work. When the runner is killed, that process ends the
    workers, and holds the experiment's lock until they are gone.

    Args:
        address: As in `RaySettings`.
        **settings: The other fields of `RaySettings`.

    Raises:
        RunError: If a setting is unknown or makes no sense.
        WorkerError: If no process can be started.
    """

    def __init__(self, address: str | None = None, **settings: Any) -> None:
        try:
            self._settings = RaySettings(address=address, **settings)
        except ValidationError as error:
            raise RunError("\n".join(map(_fault, error.errors(include_url=False)))) from error
        self._driver = _Driver(self._settings)

    def check_trial(self, settings: TrialSettings, *, slots: int) -> None:
        """Refuse trials that the cluster could not hold if it did nothing else.

        Args:
            settings: The settings of the trials.
            slots: Number of workers of each trial; >= 1.

        Raises:
            WorkerError: If the cluster cannot be joined, or cannot hold a trial.
        """
        line = self._driver.open_line(())
        try:
            line.say("check", slots=slots)
            answer = next(line.heard(), None)
        finally:
            line.close()
        if answer is None:
            raise WorkerError(f"{self._driver.why_gone()}\nStart the experiment again.")
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
        """Start the workers of a trial where Ray has room for them.

        Returns when they run, or when it is known that they have to wait for resources; then their
        process ids are 0 until they run. Lines of rank 0's standard error say so.

        Args:
            info: Which trial they run.
            home: The folder of records and default checkpoints.
            slots: Number of workers; >= 1.
            keep_open: File descriptors that are held open as long as any of the workers may run.
            on_output: Called from a thread with the rank, ``"stdout"`` or ``"stderr"``, and each
                line.
            disabled_plugins: Plugins that are switched off in the workers too.
            allowed_plugins: The only plugins that are on, or None for all.
            variables: More variables for all workers.

        Raises:
            WorkerError: If the cluster cannot be joined or cannot hold the trial, or if a worker
                cannot be started.
        """
        if not self._driver.is_running:
            # Its workers have ended, or will before those of the same trial begin.
            self._driver.close()
            self._driver = _Driver(self._settings)
        driver = self._driver
        line = driver.open_line(keep_open)
        line.say(
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
            line,
            slots,
            info=info,
            on_output=on_output,
            why_gone=driver.why_gone,
        )

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        self._driver.close()


def _fault(error: ErrorDetails) -> str:
    """Return a message that says why a setting is invalid."""
    name = ".".join(map(str, ("launcher", *error["loc"])))
    return f"{name}: {error['msg'].removeprefix('Value error, ')}"


class _Driver:
    """The process that speaks to Ray; see `detcore_ray.driver_process.driver`.

    Raises:
        WorkerError: If it cannot be started.
    """

    def __init__(self, settings: RaySettings) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "detcore_ray.driver_process.driver",
                        str(theirs.fileno()),
                    ],
                    env=child_environment({}, defaults=_QUIET),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.PIPE,
                    stdout=self._said,
                    stderr=self._said,
                    # Ctrl-C is the runner's business, and what kills its group is not to kill
                    # what ends the workers.
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                self._said.close()
                raise WorkerError(f"detcore-ray did not start {sys.executable}: {error}") from error
        if self._process.stdin is not None:
            # Not on the command line: a runtime environment may hold secrets.
            with contextlib.suppress(BrokenPipeError), self._process.stdin as file:
                file.write(settings.model_dump_json().encode())

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def open_line(self, keep_open: tuple[int, ...]) -> Line:
        """Return a line to it for one trial; it holds the descriptors open to the trial's end.

        Raises:
            WorkerError: If it is gone.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                send_descriptors(self._control, [theirs.fileno(), *keep_open])
        except OSError as error:
            ours.close()
            raise WorkerError(f"{self.why_gone()}\nStart the experiment again.") from error
        return Line(ours)

    def why_gone(self) -> str:
        """Say what became of it."""
        try:
            how = describe_exit(self._process.wait(1.0))
        except subprocess.TimeoutExpired:
            how = "has closed the line"
        self._said.seek(0)
        last = self._said.read()[-2000:].decode("utf-8", "replace").strip().splitlines()[-5:]
        return "\n".join([f"the process that speaks to Ray {how}", *last])

    def close(self) -> None:
        """Wait for its end, which comes when its trials have ended."""
        self._control.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()
