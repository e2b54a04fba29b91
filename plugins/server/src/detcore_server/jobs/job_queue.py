"""Queue of submitted experiments, each with a runner process.

The records are the queue. An experiment is RUNNING from its submission on. The server owns it until
a runner takes over. If the owner, a server or a runner, has exited, the server resumes the
experiment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.environment import child_environment
from detcore.errors import DetcoreError, ForbiddenError, RunError
from detcore.launch.worker import EXIT_TEMPFAIL
from detcore.records import SERVER_QUEUE
from detcore.run import get_experiment_dir, reconcile_experiment
from detcore.types import Control, ExperimentState
from detcore_server.jobs.submission_runner import RunnerInstructions
from detcore_server.jobs.uploads import remove_leftovers
from detcore_server.server_database import SubmissionRecord

if TYPE_CHECKING:
    from detcore.client import EmbeddedTransport
    from detcore.records import RunnerLock
    from detcore_server.server_database import ServerDatabase, TokenRecord
    from detcore_server.server_settings import ServerSettings


_logger = logging.getLogger("detcore.server")

_POLL_INTERVAL_S = 0.5
_OPEN = ("QUEUED", "STARTED")
_LOG = "runner.log"
# A runner that ran longer did not fail to start.
_LASTED_S = 60.0
_MAX_FAILURES = 3
_MAX_BACKOFF_S = 60.0
_TAIL_BYTES = 4096
# Without SIGKILL, which the system sends when memory is short and would send again.
_SENT = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# The user's code must not see credentials or the database URL.
_SECRET = (
    "DETCORE_DB",
    "DETCORE_MASTER",
    "DETCORE_PASSWORD",
    "DETCORE_TOKEN",
    "DETCORE_USER",
    "DET_MASTER",
    "DET_MASTER_ADDR",
    "DET_MASTER_PORT",
    "DET_PASS",
    "DET_USER",
)


@dataclasses.dataclass(slots=True)
class _Failures:
    """Consecutive runners of an experiment that exited before the experiment ended.

    Attributes:
        num_ends: Number of runners that exited.
        count: Number of runners that exited without an external signal. A runner may receive a
            signal before it handles signals.
        due_at: Start time of the next runner on the monotonic clock.
    """

    num_ends: int = 0
    count: int = 0
    due_at: float = 0.0

    def note(self, lasted_s: float, code: int | None) -> None:
        """Record a failure with its exit code, or None if the runner did not start."""
        # Exit code of a runner that handled a shutdown signal.
        if code == EXIT_TEMPFAIL or lasted_s > _LASTED_S:
            self.num_ends = self.count = 0
        else:
            self.num_ends += 1
            self.count += not _is_external_signal(code)
        pause_s = 0.0 if self.num_ends < 2 else min(_MAX_BACKOFF_S, 2.0 ** (self.num_ends - 1))
        self.due_at = time.monotonic() + pause_s


@dataclasses.dataclass(slots=True)
class _Runner:
    process: subprocess.Popen[bytes]
    started_at: float


class Jobs:
    """Starts a limited number of runners and supervises them in a thread.

    If several servers share the records, only the holder of the queue lock does so.

    Args:
        settings: Settings of the server.
        database: Records of the server.
        transport: Transport for actions on experiments.
    """

    def __init__(
        self, settings: ServerSettings, database: ServerDatabase, transport: EmbeddedTransport
    ) -> None:
        self._settings = settings
        self._database = database
        self._transport = transport
        self._runners: dict[int, _Runner] = {}
        self._ended: dict[int, _Failures] = {}
        self._stops = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock: RunnerLock | None = None
        self._has_queue = False

    def start(self) -> None:
        """Start supervising submitted experiments, including experiments of an earlier server."""
        remove_leftovers(self._settings.environment.home)
        self._lock = self._database.open_lock(SERVER_QUEUE, self._settings.environment.home)
        self._has_queue = self._lock.acquire()
        if not self._has_queue:
            _logger.warning(
                "process %d on %s runs the submitted experiments of these records. This server "
                "takes over when that process has exited.",
                *reversed(self._lock.find_holder()),
            )
        self._thread = threading.Thread(target=self._run, name="detcore-jobs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop starting runners. Running runners continue."""
        self._stops.set()
        if self._thread is not None:
            self._thread.join()
        if self._lock is not None:
            self._lock.close()

    # -- control ----------------------------------------------------------------------------------

    def control(self, requester: TokenRecord, experiment_id: int, action: str) -> None:
        """Activate, pause, cancel, kill, archive, unarchive or delete an experiment.

        Args:
            requester: The user.
            experiment_id: The experiment.
            action: The action.

        Raises:
            NotFoundError: If the experiment does not exist.
            ForbiddenError: If the user is neither an administrator nor the owner.
            RunError: If the experiment's state does not allow the action.
        """
        self._database.get_experiment(experiment_id)
        submission = self.require_owner(requester, experiment_id)
        if submission is not None and action == "activate":
            self._activate(submission)
            return
        is_requested = (
            submission is not None
            and submission.state is ExperimentState.RUNNING
            and submission.phase != "ENDED"
            and action in {control.value for control in Control}
            # The owner may change at any moment, but the server and the runner both read requests
            # from the records.
            and self._database.request_control(experiment_id, Control(action))
        )
        if not is_requested:
            self._transport.control_experiment(experiment_id, action)

    def control_trial(self, requester: TokenRecord, trial_id: int, action: str) -> None:
        """Cancel or kill a trial.

        Args:
            requester: The user.
            trial_id: The trial.
            action: The action.

        Raises:
            NotFoundError: If the trial does not exist.
            ForbiddenError: As in `control`.
            RunError: If the trial has ended.
        """
        experiment_id = self._database.get_trial(trial_id).experiment_id
        submission = self.require_owner(requester, experiment_id)
        searcher = self._database.get_experiment(experiment_id).searcher
        if submission is not None and searcher.name == "single":
            self.control(requester, experiment_id, action)
        else:
            self._transport.control_trial(trial_id, action)

    def may_control(self, requester: TokenRecord, experiment_id: int) -> bool:
        """Whether a user may change an experiment."""
        return _is_owner(requester, self._database.get_submission(experiment_id))

    def require_owner(self, requester: TokenRecord, experiment_id: int) -> SubmissionRecord | None:
        """Check that a user may change an experiment and delete its checkpoints.

        Returns:
            The submission, or None if the experiment was not submitted.

        Raises:
            ForbiddenError: If the user is neither an administrator nor the owner.
        """
        submission = self._database.get_submission(experiment_id)
        if _is_owner(requester, submission):
            return submission
        reason = "it was started on the server's machine.\nAsk an administrator."
        if submission is not None:
            reason = f"it belongs to {submission.user_name!r}.\nAsk the owner or an administrator."
        raise ForbiddenError(
            f"user {requester.user_name!r} may not change experiment {experiment_id}: {reason}"
        )

    def _activate(self, submission: SubmissionRecord) -> None:
        number = submission.experiment_id
        self._ended.pop(number, None)
        if self._database.queue_again(number):
            return
        if self._database.get_experiment(number).state is ExperimentState.COMPLETED:
            raise RunError(
                f"experiment {number} is complete and cannot be resumed.\n"
                "Start a new experiment. Set searcher.source_checkpoint_uuid to use its weights."
            )
        if submission.control is Control.PAUSE:
            # A runner that is about to pause then leaves the experiment RUNNING.
            self._database.request_control(number, None)
            self._database.queue_again(number)  # the runner may just have exited

    def num_before(self, experiment_id: int) -> int | None:
        """Return the number of experiments ahead in the queue, or None if it has started."""
        submissions = self._database.list_submissions(phases=_OPEN)
        submission = next((one for one in submissions if one.experiment_id == experiment_id), None)
        if submission is None or submission.phase != "QUEUED":
            return None
        return sum(
            one.phase == "STARTED" or one.experiment_id < experiment_id for one in submissions
        )

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._lock is not None
        while not self._stops.wait(_POLL_INTERVAL_S):
            try:
                lock = self._lock
                self._has_queue = lock.is_held() if self._has_queue else lock.acquire()
                if self._has_queue:
                    self._update_queue()
            except (DetcoreError, OSError) as error:
                # The database is unreachable or full. The next attempt may succeed.
                _logger.warning("cannot supervise submitted experiments at the moment: %s", error)
            except Exception:  # no error may stop the thread
                _logger.exception("cannot supervise submitted experiments at the moment")

    def _update_queue(self) -> None:
        """Record ended experiments, and start waiting experiments up to the limit."""
        num_at_work = 0
        waiting = []
        open_ones = self._database.list_submissions(phases=_OPEN)
        for number in self._runners.keys() - {one.experiment_id for one in open_ones}:
            self._drop_experiment(number)  # the experiment was deleted
        for submission in open_ones:
            number = submission.experiment_id
            if submission.state is not ExperimentState.RUNNING:
                self._drop_experiment(number)
                self._database.set_submission_phase(number, "ENDED")
            elif self._is_at_work(submission):
                num_at_work += submission.phase == "STARTED"
            else:
                waiting.append(submission)
        # Experiments that had already started come first.
        waiting.sort(key=lambda submission: submission.phase != "STARTED")
        for submission in waiting:
            if self._stops.is_set():
                return
            # Jobs that a killed runner has left save and end under the next runner.
            if submission.control is not None and not self._database.list_running_jobs(
                submission.experiment_id
            ):
                self._finish_control(submission.experiment_id, submission.control)
            elif num_at_work < self._settings.max_experiments:
                num_at_work += 1
                self._resume(submission)

    def _is_at_work(self, submission: SubmissionRecord) -> bool:
        """Whether a runner is alive. A new runner acquires its lock after a moment."""
        runner = self._runners.get(submission.experiment_id)
        if runner is not None and runner.process.poll() is None:
            return True
        return self._database.find_runner(submission.experiment_id) is not None

    def _drop_experiment(self, experiment_id: int) -> None:
        runner = self._runners.pop(experiment_id, None)
        if runner is not None:
            threading.Thread(target=runner.process.wait, daemon=True).start()
        self._ended.pop(experiment_id, None)

    def _finish_control(self, experiment_id: int, control: Control) -> None:
        """Execute a request for an experiment without a runner."""
        with contextlib.suppress(RunError):  # its last workers are still exiting
            reconcile_experiment(
                experiment_id,
                control=control,
                database=self._database,
                environment=self._settings.environment,
            )

    def _resume(self, submission: SubmissionRecord) -> None:
        number = submission.experiment_id
        ended = self._ended.setdefault(number, _Failures())
        runner = self._runners.pop(number, None)
        if runner is not None:
            code = runner.process.wait()
            ended.note(time.monotonic() - runner.started_at, code)
            _logger.warning("the runner of experiment %d exited with code %d", number, code)
        if ended.count >= _MAX_FAILURES:
            self._give_up(number, ended.count)
        elif time.monotonic() >= ended.due_at:
            self._database.set_submission_phase(number, "STARTED")
            try:
                process = self._start_runner(submission)
            except OSError as error:
                _logger.warning("cannot start a runner for experiment %d: %s", number, error)
                ended.note(0.0, None)
            else:
                self._runners[number] = _Runner(process, time.monotonic())

    def _give_up(self, experiment_id: int, count: int) -> None:
        log = self._find_directory(experiment_id) / _LOG
        error = f"the runner exited {count} times in a row; last message: {_read_last_line(log)}"
        self._database.set_experiment_state(experiment_id, ExperimentState.ERROR, error=error)

    def _start_runner(self, submission: SubmissionRecord) -> subprocess.Popen[bytes]:
        """Start a runner that outlives this process."""
        settings = self._settings
        instructions = RunnerInstructions(
            experiment_id=submission.experiment_id,
            home=str(settings.environment.home),
            database_url=settings.environment.database_url,
            test_mode=submission.test_mode,
            allowed_plugins=_sort_names(settings.plugins.allowed),
            disabled_plugins=_sort_names(settings.plugins.disabled) or [],
        )
        folder = self._find_directory(submission.experiment_id)
        folder.mkdir(parents=True, exist_ok=True)
        number = str(submission.experiment_id)
        with (folder / _LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "detcore_server.jobs.submission_runner", number],
                env=child_environment({}, without=_SECRET),
                cwd=settings.environment.home,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(dataclasses.asdict(instructions)).encode())
        return process

    def _find_directory(self, experiment_id: int) -> Path:
        return get_experiment_dir(self._settings.environment, experiment_id)


def _is_owner(requester: TokenRecord, submission: SubmissionRecord | None) -> bool:
    return requester.is_admin or (
        submission is not None and submission.user_id == requester.user_id
    )


def _is_external_signal(code: int | None) -> bool:
    """Whether an external signal ended a process. Shells report signal n as 128 + n."""
    return code is not None and (-code if code < 0 else code - 128) in _SENT


def _sort_names(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _read_last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].strip()[:300] if lines else f"no output ({log})"
