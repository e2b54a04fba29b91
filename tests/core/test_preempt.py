"""Signals set a flag and nothing more."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
from processes import is_pending

from detcore.core import DistributedContext, PreemptContext, PreemptMode
from detcore.errors import ContextStateError

LOOP = """
import signal, sys, time
from detcore import core
with core.init() as context:
    print("ready", flush=True)
    try:
        for step in range(10_000):
            time.sleep(0.01)
            if {condition}:
                print("stopping", context.preempt.should_preempt(), flush=True)
                break
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
print("handlers back", signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signal_requests_preemption(home: Any, number: signal.Signals) -> None:
    process = home.start(LOOP.format(condition="context.preempt.is_requested"), until="ready")
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (0, "stopping True\nhandlers back True\n"), stderr
    with home.database() as database:
        assert database.list_experiments()[0].state.value == "PAUSED"


def test_second_sigint_raises_keyboard_interrupt(home: Any) -> None:
    process = home.start(LOOP.format(condition="False"), until="ready")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    while is_pending(process.pid, signal.SIGINT):  # pending signals are merged
        time.sleep(0.01)
    with pytest.raises(Exception, match="timed out"):
        process.wait(timeout=0.5)  # one SIGINT after another signal is the first of its kind
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=30)
    assert stdout == "interrupted\n"
    assert process.returncode in (-signal.SIGINT, 130)
    with home.database() as database:
        assert database.list_experiments()[0].state.value == "ERROR"


def make(mode: PreemptMode = PreemptMode.WorkersAskChief, rank: int = 0) -> PreemptContext:
    distributed = DistributedContext()
    distributed.rank = rank
    return PreemptContext(distributed, mode)


@pytest.mark.parametrize("mode", list(PreemptMode))
def test_request_from_within_process(mode: PreemptMode) -> None:
    preempt = make(mode).start()
    try:
        assert not preempt.should_preempt()
        threading.Thread(target=preempt.request).start()
        while not preempt.is_requested:
            pass
        assert preempt.should_preempt(auto_ack=False)
        assert not preempt.is_acknowledged
        preempt.acknowledge_preemption_signal()
        assert preempt.is_acknowledged
        assert preempt.should_preempt()
    finally:
        preempt.close()


def test_should_preempt_requires_open_context() -> None:
    preempt = make()
    with pytest.raises(ContextStateError, match="before the context was started"):
        preempt.should_preempt()
    preempt.start()
    with pytest.raises(ContextStateError, match="started twice"):
        preempt.start()
    preempt.close()
    worker = make(PreemptMode.ChiefOnly, rank=1).start()
    with pytest.raises(ContextStateError, match="rank 1 in ChiefOnly mode"):
        worker.should_preempt()
    worker.close()


def test_foreign_signal_handlers_are_kept() -> None:
    def mine(number: int, frame: object) -> None:
        """Do nothing."""

    def theirs(number: int, frame: object) -> None:
        """Do nothing either."""

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        signal.signal(signal.SIGTERM, mine)
        preempt = make().start()
        signal.signal(signal.SIGUSR1, theirs)
        preempt.close()
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGUSR1) is theirs
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_other_threads_keep_signal_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    errors: list[Any] = []

    def run() -> None:
        preempt = make().start()
        errors.append(signal.getsignal(signal.SIGTERM))
        preempt.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == [before]
