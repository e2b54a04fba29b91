"""Measure the cost of one decision of a search as the number of trials grows.

    python benchmarks/decisions.py [--trials 100000] [--events 400] [--quick]

The search is asynchronous successive halving (`async_halving`: one trial in 4 is promoted, 16 train
concurrently) with reports of 1,000 trials, and of `--trials` trials. Further reports follow one
after the other. The table gives medians per report:

- "decision": the search alone (`detcore.search.Search.apply`), with the hyperparameters of a new
  trial if it starts one;
- "resumed": the same after the search was restored from its log;
- "fate": the actions that the runner derives for trials (two calls of `decide_actions`, no I/O);
- "recorded": the decision and its transaction in an SQLite file.

The peer is Optuna with `SuccessiveHalvingPruner` in memory: `should_prune` of one trial among as
many trials with reports, in the same rounds. "control" repeats the first measure with another
search of the same size. "resume" is the time to open the log and reconcile the trials.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from _report import parse_options, print_table

from detcore.config import ExperimentConfig, load_mapping
from detcore.environment import read_environment
from detcore.plugins import PluginManager
from detcore.records import Database
from detcore.records.queries import now
from detcore.records.schema import search_events, trials
from detcore.run.search_log import SearchLog
from detcore.run.supervisor import Advanced, Reported, State, decide_actions, resume_run
from detcore.search import (
    Create,
    Event,
    Operation,
    Search,
    SearchSetup,
    Train,
    Validated,
    event_to_json,
)
from detcore.search.adaptive import HalvingSearch

SMALL = 1_000
SPACE = {
    "rate": {"type": "log", "base": 10.0, "minval": -4.0, "maxval": -1.0},
    "layers": {"type": "int", "minval": 1, "maxval": 4},
    "momentum": {"type": "double", "minval": 0.0, "maxval": 0.9},
}
SETTINGS = {"max_trials": 10**9, "num_rungs": 5, "divisor": 4.0, "max_concurrent_trials": 16,
            "stop_once": False, "smaller_is_better": True}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--trials", type=int, default=100_000, help="number of trials of the large search"
    )
    parser.add_argument("--events", type=int, default=400, help="number of measured reports")
    parser.add_argument("--folder", type=Path, default=Path())
    options = parse_options(parser, trials=1_200, events=4)
    rows = []
    with tempfile.TemporaryDirectory(prefix="decisions-", dir=options.folder) as name:
        for size in (SMALL, options.trials):
            rows.append(_measure(Path(name) / str(size), size, options.events))
    print(f"{options.events} reports after those of {SMALL:,} and {options.trials:,} trials\n")
    heads = ("work", f"{SMALL:,} trials, us", f"{options.trials:,} trials, us", "p99, us", "growth")
    print_table(heads, _rows(*rows))


def _rows(small: dict[str, list[float]], large: dict[str, list[float]]) -> Iterator[list[str]]:
    for measure, times in large.items():
        low, high = statistics.median(small[measure]), statistics.median(times)
        slow = sorted(times)[int(len(times) * 0.99)]
        figures = [f"{seconds * 1e6:,.0f}" for seconds in (low, high, slow)]
        yield [measure, *figures, f"{high / low:.2f}"]


class Reports:
    """Reports of a search. The next report is of the running trial that started first.

    Args:
        first: Operations that the search requested at its start.
    """

    def __init__(self, first: Sequence[Operation]) -> None:
        self._training: deque[tuple[int, int]] = deque()
        self._random = random.Random(3)
        self.follow(first)

    def follow(self, operations: Sequence[Operation]) -> None:
        """Start trials."""
        self._training += [(op.trial, op.length) for op in operations if isinstance(op, Train)]

    def next(self) -> Validated:
        """Return the next report."""
        return Validated(*self._training.popleft(), self._random.random())


def _method() -> HalvingSearch:
    return HalvingSearch(
        SearchSetup(settings=SETTINGS, hyperparameters=SPACE, seed=1, max_length=1024)
    )


def _config() -> ExperimentConfig:
    searcher = {"name": "async_halving", "metric": "loss", "max_length": {"batches": 1024}}
    config = {
        "name": "s",
        "searcher": {**searcher, **SETTINGS},
        "hyperparameters": SPACE,
        "reproducibility": {"experiment_seed": 1},
    }
    return load_mapping(config).config


def _measure(folder: Path, size: int, count: int) -> dict[str, list[float]]:
    """Return the seconds of each kind of work, after reports of some trials."""
    searches = [_grown(size), _grown(size)]
    durations: dict[str, list[float]] = {}
    database = Database.open(f"sqlite:///{folder.absolute()}/records.db")
    experiment = _record(database, searches[0][0])
    events = list(searches[0][0].events)
    optuna = _optuna(size)
    for _ in range(count):
        for name, (search, reports) in zip(("decision", "control"), searches, strict=True):
            event = reports.next()
            reports.follow(_timed(durations, name, lambda s=search, e=event: s.apply(e)))  # type: ignore[misc]
        _timed(durations, "Optuna: should_prune", optuna())

    search = Search.replay(_method(), events, seed=1)
    reports = _waiting(search)
    began = time.process_time()
    plugins = PluginManager(read_environment({"DETCORE_PLUGINS": "core"}))
    log = SearchLog(database, experiment, _config(), plugins, trials_dir=folder)
    records = dict(enumerate(database.list_trials(experiment)))
    state, _ = resume_run(log.entries, records, max_restarts=0, num_places=16)
    durations["resume, whole"] = [time.process_time() - began]
    for _ in range(count):
        event = reports.next()
        reports.follow(_timed(durations, "resumed", lambda e=event: search.apply(e)))  # type: ignore[misc]
        operations = _timed(durations, "recorded", lambda e=event: log.record_event(e))  # type: ignore[misc]
        state = _fate(state, event, operations or (), log, durations)
    database.close()
    return durations


def _fate(
    state: State, event: Validated, operations: Sequence[Operation], log: SearchLog, durations: Any
) -> State:
    created = [log.trial_ids[op.trial] for op in operations if isinstance(op, Create)]
    report = Reported(event.trial, event.length, event.metric)

    def both() -> State:
        advanced = Advanced(event, None, operations, created)
        return decide_actions(decide_actions(state, report)[0], advanced)[0]

    return _timed(durations, "fate", both)  # type: ignore[no-any-return]


def _timed(durations: dict[str, list[float]], name: str, work: Callable[[], Any]) -> Any:
    began = time.process_time()
    answer = work()
    durations.setdefault(name, []).append(time.process_time() - began)
    return answer


def _grown(size: int) -> tuple[Search, Reports]:
    """Return a search with some trials, and its following reports."""
    search = Search(_method(), seed=1)
    reports = Reports(search.first)
    while len(search.trials) < size:
        reports.follow(search.apply(reports.next()))
    return search, reports


def _waiting(search: Search) -> Reports:
    """Return the following reports of a search, in the order of its trials."""
    reports = Reports(())
    trains = [
        Train(index, trial.length)
        for index, trial in enumerate(search.trials)
        if not (trial.is_closed or trial.is_waiting)
    ]
    reports.follow(trains)
    return reports


def _record(database: Database, search: Search) -> int:
    """Record a search in bulk, and return its experiment."""
    experiment = database.create_experiment(
        config={"searcher": {"name": "async_halving"}}, config_text=None, model_dir="/m", name="s"
    )
    row = {"experiment_id": experiment, "state": "PAUSED", "seed": 1, "num_restarts": 0,
           "labels": [], "notes": "", "created_at": now()}  # fmt: skip
    logged: Iterator[Event | None] = itertools.chain([None], search.events)
    with database._begin_write() as connection:
        connection.execute(
            trials.insert(),
            [{**row, "search_index": index, "hparams": trial.hparams,
              "length": trial.length} for index, trial in enumerate(search.trials)],
        )  # fmt: skip
        connection.execute(
            search_events.insert(),
            [{"experiment_id": experiment, "number": number, "created_at": now(),
              "event": None if event is None else event_to_json(event)}
             for number, event in enumerate(logged)],
        )  # fmt: skip
    return experiment


def _optuna(size: int) -> Callable[[], Callable[[], bool]]:
    """Return a function that queries Optuna about a new trial among many trials with reports."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=4, reduction_factor=4)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1), pruner=pruner)
    generator = random.Random(3)
    study.add_trials(
        [
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.PRUNED,
                intermediate_values={4: metric},
                system_attrs={"completed_rung_0": metric},
            )
            for metric in (generator.random() for _ in range(size))
        ]
    )

    def ready() -> Callable[[], bool]:
        trial = study.ask()
        trial.report(generator.random(), 4)
        return trial.should_prune

    return ready


if __name__ == "__main__":
    main()
