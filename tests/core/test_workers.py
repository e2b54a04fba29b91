"""The Core API of several workers: real processes that `detcore launch` starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from launch_command import run_ranks

from detcore.records import Database

HEAD = """
import json, sys
from pathlib import Path
from detcore import core
from detcore.errors import ContextStateError, DistributedError

def attempt(call):
    try:
        call()
    except ContextStateError as error:
        return str(error)
    return "nothing was raised"
"""


@pytest.fixture
def launch(tmp_path: Path) -> Any:
    """Return a function that runs a script on N workers; each prints one JSON line."""

    return lambda body, workers, expect=0: run_ranks(tmp_path, HEAD + body, workers, code=expect)


def test_chief_records_and_all_restore(launch: Any, tmp_path: Path) -> None:
    results, _ = launch(
        """
ranks = core.DistributedContext.from_env()
with core.init(distributed=ranks, max_length={"batches": 7}) as context:
    rank = context.distributed.rank
    uuid = None
    if rank == 0:
        context.train.report_training_metrics(1, {"loss": 0.5}, n_records=8)
        context.train.report_validation_metrics(1, {"val_loss": 0.25}, n_records=21)
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
            (path / "weights").write_text("from the chief")
    uuid = context.distributed.broadcast(uuid)
    with context.checkpoint.restore_path(uuid) as path:
        text = (path / "weights").read_text()
    refused = []
    if rank:
        refused = [
            attempt(lambda: context.train.report_training_metrics(1, {})),
            attempt(lambda: context.train.report_validation_metrics(1, {})),
            attempt(lambda: context.train.get_experiment_best_validation()),
            attempt(lambda: context.train.report_early_exit(core.EarlyExitReason.INVALID_HP)),
            attempt(lambda: context.checkpoint.upload(path, {"steps_completed": 1})),
            attempt(lambda: context.checkpoint.store_path({"steps_completed": 1}).__enter__()),
            attempt(lambda: context.checkpoint.delete(uuid)),
        ]
    lengths = []
    for operation in context.searcher.operations():
        lengths.append(operation.length)
        if rank == 0:
            operation.report_completed(0.25)
    context.distributed.barrier()
    print(json.dumps([context.info.trial_id, text, refused, lengths]))
""",
        3,
    )
    assert [result[0] for result in results] == [1, 1, 1]
    assert [result[1] for result in results] == ["from the chief"] * 3
    assert [result[3] for result in results] == [[7]] * 3
    for rank, result in enumerate(results[1:], 1):
        assert all(f"rank {rank}" in text for text in result[2]), result[2]
    with Database.open(f"sqlite:///{tmp_path / 'home' / 'detcore.db'}") as database:
        assert [experiment.state.value for experiment in database.list_experiments()] == [
            "COMPLETED"
        ]
        assert [row.n_records for row in database.metrics(1, "training")] == [8]
        assert [row.n_records for row in database.metrics(1, "validation")] == [21]


def test_all_workers_see_stop_and_open_operation(launch: Any) -> None:
    results, _ = launch(
        """
with core.init(distributed=core.DistributedContext.from_env(), max_length=1) as context:
    before = context.preempt.should_preempt()
    if context.distributed.rank == 0:
        context.preempt.request()
    after = context.preempt.should_preempt()

    def use_up():
        for operation in context.searcher.operations():
            pass

    print(json.dumps([before, after, attempt(use_up)]))
""",
        2,
    )
    for before, after, message in results:
        assert (before, after) == (False, True)
        assert "was not completed" in message


def test_worker_exception_fails_experiment(launch: Any, tmp_path: Path) -> None:
    _, output = launch(
        """
with core.init(distributed=core.DistributedContext.from_env()) as context:
    if context.distributed.rank == 1:
        raise ValueError("a mistake on one worker")
    context.distributed.barrier()
""",
        2,
        expect=1,
    )
    assert "PeerLostError: rank 1 raised ValueError('a mistake on one worker')" in output
    with Database.open(f"sqlite:///{tmp_path / 'home' / 'detcore.db'}") as database:
        (experiment,) = database.list_experiments()
        assert experiment.state.value == "ERROR"
        assert "rank 1" in (experiment.error or "")


def test_chief_start_failure_reaches_all_workers(launch: Any) -> None:
    _, output = launch(
        """
Path(sys.argv[1], "home").write_text("no folder")
try:
    with core.init(distributed=core.DistributedContext.from_env()):
        pass
except DistributedError as error:
    print("heard:", error)
    raise
""",
        2,
        expect=1,
    )
    assert "heard: rank 0" in output
