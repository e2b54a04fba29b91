"""The agent that ``horovodrun`` starts on each machine. It starts and supervises a worker.

The agent reports to the launcher, between the worker's lines, how to reach the worker and how it
ended. It ends the worker when nothing reads its output, because the launcher has exited or the
connection is broken.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from detcore.environment import child_environment, read_variables
from detcore.launch.nodes import drop_outer_job_variables, place_ranks

# Start of the agent's messages to the launcher. It contains the ASCII record separator, which
# programs do not print by chance.
MARK = b"\x1edetcore "

_EXIT_NOT_STARTED = 127
_GRACE_S = 5.0
_STDOUT = 1


def main(command: Sequence[str]) -> int:
    """Run a worker to its end.

    Args:
        command: Program and arguments.

    Returns:
        Always 0, because other codes would make horovodrun end the other workers immediately. A
        message reports the worker's exit code to the launcher.
    """
    variables = read_variables(("HOROVOD_HOSTNAME", "HOROVOD_LOCAL_SIZE", "SSH_CONNECTION"))
    place = place_ranks(["here"] * int(variables.get("HOROVOD_LOCAL_SIZE", "1")))[0]
    environment = child_environment({}, defaults=drop_outer_job_variables({}, place))
    try:
        worker = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        print(f"{command[0]} did not start: {error}", file=sys.stderr)
        _report("ended", _EXIT_NOT_STARTED)
        return 0
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(signal_number, lambda received, _frame: worker.send_signal(received))
    threading.Thread(target=_end_without_reader, args=(worker,), daemon=True).start()
    way = "ssh" if "SSH_CONNECTION" in variables else "direct"
    _report("started", way, variables.get("HOROVOD_HOSTNAME", "localhost"), worker.pid)
    code = worker.wait()
    _signal_group(worker, signal.SIGKILL)
    _report("ended", code)
    return 0


def _report(*words: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(_STDOUT, MARK + (" ".join(map(str, words)) + "\n").encode())


def _end_without_reader(worker: subprocess.Popen[bytes]) -> None:
    poll = select.poll()
    poll.register(_STDOUT, 0)  # errors and hang-ups are always reported
    poll.poll()
    _signal_group(worker, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(_GRACE_S)
    _signal_group(worker, signal.SIGKILL)


def _signal_group(worker: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
