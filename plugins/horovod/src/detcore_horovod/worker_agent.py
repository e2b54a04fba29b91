"""The agent that ``horovodrun`` starts on each machine, which starts a worker and supervises it.

Between the worker's lines, it reports to the launcher how to reach the worker and how the worker
ended. It ends the worker when its output has no reader, because the launcher or connection is gone.
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

# Begins the messages of an agent to the launcher. It contains the ASCII record separator, which no
# program prints by chance.
MARK = b"\x1edetcore "

_EXIT_NOT_STARTED = 127
_GRACE_S = 5.0
_STDOUT = 1


def main(command: Sequence[str]) -> int:
    """Run a worker to its end.

    Args:
        command: Program and arguments.

    Returns:
        Always 0, because for another code horovodrun would end the other workers at once. The
        launcher receives the worker's code in a message.
    """
    told = read_variables(("HOROVOD_HOSTNAME", "HOROVOD_LOCAL_SIZE", "SSH_CONNECTION"))
    place = place_ranks(["here"] * int(told.get("HOROVOD_LOCAL_SIZE", "1")))[0]
    environment = child_environment({}, defaults=drop_outer_job_variables({}, place))
    try:
        worker = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        print(f"{command[0]} did not start: {error}", file=sys.stderr)
        _tell("ended", _EXIT_NOT_STARTED)
        return 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: worker.send_signal(received))
    threading.Thread(target=_end_when_unheard, args=(worker,), daemon=True).start()
    way = "ssh" if "SSH_CONNECTION" in told else "direct"
    _tell("started", way, told.get("HOROVOD_HOSTNAME", "localhost"), worker.pid)
    code = worker.wait()
    _signal_group(worker, signal.SIGKILL)
    _tell("ended", code)
    return 0


def _tell(*words: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(_STDOUT, MARK + (" ".join(map(str, words)) + "\n").encode())


def _end_when_unheard(worker: subprocess.Popen[bytes]) -> None:
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
