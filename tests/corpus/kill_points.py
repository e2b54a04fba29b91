"""Count the batches of this process, and kill it at the batch of ``CORPUS_KILL_AT``.

A batch is a step of any PyTorch optimizer, a batch that a function passes to `count`, a call of
`should_preempt` in a script's own loop, or a report of a trial that uses none of these.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["BatchCounter", "prepare_kill"]


class BatchCounter:
    """Counts batches, and writes their number to a file when the process exits.

    Args:
        path: The file.
        kill_at: The batch before which the process kills itself; 0 for none.
    """

    def __init__(self, path: Path, kill_at: int) -> None:
        self._kill_at = kill_at
        self._count = 0
        atexit.register(lambda: path.write_text(str(self._count)))

    def count(self, *_: Any) -> None:
        """Count a batch."""
        self._count += 1
        if self._count == self._kill_at:
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def count_calls(self, owner: Any, name: str) -> None:
        """Count the calls of a method."""
        original: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(original)
        def counted(*arguments: Any, **options: Any) -> Any:
            self.count()
            return original(*arguments, **options)

        setattr(owner, name, counted)


def prepare_kill() -> None:
    """Count the events that ``CORPUS_EVENT`` names."""
    counter = BatchCounter(
        Path(os.environ["CORPUS_FOLDER"], "count.txt"), int(os.environ.get("CORPUS_KILL_AT", "0"))
    )
    event = os.environ["CORPUS_EVENT"]
    if event == "optimizer":
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(counter.count)
    elif event == "batch":
        from detcore.core.preempt_context import PreemptContext

        counter.count_calls(PreemptContext, "should_preempt")
    elif event == "keras":
        from detcore_keras.frameworks import keras

        counter.count_calls(keras.callbacks.CallbackList, "on_train_batch_end")
    else:
        from detcore.trial.clock import ScheduledClock

        counter.count_calls(ScheduledClock, "boundary")
