"""Measure the speed of `EstimatorTrial` and the stand-alone `Estimator` against `tf.estimator`.

    python benchmarks/estimator_fit.py [--rounds 9] [--only steady,schedule] [--threads 1]
        [--quick] [--determined PYTHON]

Requires detcore-estimator and TensorFlow 2.15. Each variant is a separate process that waits
between turns. The parent gives each of them a turn, in a new random order each round. A ratio
compares two variants within a round. The table gives medians and quartiles over rounds. The null
control is `tf.estimator` against itself: differences within its spread mean nothing, and then the
CPU column counts.

Cases: "steady" is 400 batches in one session. "schedule" is five times 100 batches with an
evaluation of 50 batches, from building the graph to the last checkpoint. The other cases are calls
of the stand-alone engine: one `train` of 400 steps, without and with hooks, four `train` of 100
steps, one `evaluate` of 400 batches, one `predict` of 3200 records.

With --determined, the Python of an environment with determined 0.23.4, the first two cases have
rows for Determined. It runs without a master, so its HTTP reports are not measured.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _report import fixed_variables, parse_options, print_table, with_quartiles
from _trial_setup import BenchmarkClock, make_setup

ENGINE_CASES = ("train", "train hooks", "short trains", "evaluate", "predict")
VARIANTS = {
    "steady": ("bare", "null", "fast", "bare hooks", "hooks", "determined"),
    "schedule": ("bare", "null", "detcore", "determined"),
    **dict.fromkeys(ENGINE_CASES, ("bare", "null", "detcore")),
}
# Variants that are compared with another variant than "bare".
AGAINST = {"hooks": ("bare hooks", "bare")}
LABELS = {
    "bare": "tf.estimator",
    "null": "tf.estimator, null control",
    "bare hooks": "tf.estimator, hooks",
    "determined": "Determined 0.23.4",
    "fast": "detcore, fast",
    "hooks": "detcore, hooks",
}
BATCH, RECORDS, UNIT, TURN = 32, 1792, 100, 400
EVALUATION = 50
SIZES = {"cycles": 5}

Times = list[tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default=",".join(VARIANTS))
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of TensorFlow's pools; 0 = TensorFlow's default",
    )
    parser.add_argument("--determined", metavar="PYTHON", help="Python interpreter with Determined")
    parser.add_argument("--worker", nargs=2, metavar=("CASE", "VARIANT"))
    parser.add_argument("--cycles", type=int, default=5, help="evaluations of a schedule")
    parser.add_argument("--variants", default="", help="measured cases (default: all)")
    options = parse_options(
        parser,
        rounds=1,
        only="steady,schedule,train hooks",
        variants="bare,hooks,detcore",
        cycles=1,
    )
    SIZES["cycles"] = options.cycles
    if options.worker:
        _serve(*options.worker, threads=options.threads)
        return
    heads = "case", "variant", "wall", "cpu", "against", "times as fast [q1, q3]", "cpu x"
    cases = (case.strip() for case in options.only.split(","))
    print_table(heads, (row for case in cases for row in _compare(case, options)))


# -- the parent: turns and ratios ------------------------------------------------------------------


def _compare(case: str, options: argparse.Namespace) -> list[list[str]]:
    determined = options.determined
    selection = options.variants.split(",") if options.variants else VARIANTS[case]
    names = [
        name
        for name in VARIANTS[case]
        if name in selection and (determined or name != "determined")
    ]
    times: dict[str, Times] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="detcore-benchmark-"))
        workers = {}
        for name in names:
            python = determined if determined and name == "determined" else sys.executable
            command = [python, __file__, "--worker", case, name]
            # Closing the stack closes the input of the process, which ends the process.
            workers[name] = stack.enter_context(_start(command, folder, options))
        for _ in range(options.rounds):
            for name in random.sample(names, len(names)):
                times[name].append(_turn(workers[name]))
    return [
        _row(case, name, other, times)
        for name in names
        for other in AGAINST.get(name, ("bare",))
        if other in names
    ]


def _start(command: list[str], folder: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    threads = str(options.threads)
    variables = {
        "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"
    }  # fmt: skip
    if options.threads:
        # This also applies if a session with the default configuration was opened before.
        variables |= {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": threads}
    environment = {**fixed_variables(options, **variables), "TMPDIR": folder}
    worker = subprocess.Popen(
        [*command, "--threads", threads, "--cycles", str(options.cycles)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    _read(worker)  # ready, after a warm-up
    return worker


def _turn(worker: subprocess.Popen[str]) -> tuple[float, float]:
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    wall, cpu = json.loads(_read(worker))
    return wall, cpu


def _read(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith("@"):
            return line[1:]
    raise SystemExit(f"a worker ended with code {worker.wait()}")


def _row(case: str, name: str, other: str, times: dict[str, Times]) -> list[str]:
    wall, cpu = (
        _readable(case, statistics.median(turn[part] for turn in times[name])) for part in (0, 1)
    )
    pairs = list(zip(times[other], times[name], strict=True))
    speed = with_quartiles([base[0] / variant[0] for base, variant in pairs], 2)
    cpus = with_quartiles([variant[1] / base[1] for base, variant in pairs], 3)
    return [case, LABELS.get(name, name), wall, cpu, LABELS[other], speed, cpus]


def _readable(case: str, seconds: float) -> str:
    return f"{seconds / TURN * 1e6:.0f} us/batch" if case == "steady" else f"{seconds * 1e3:.0f} ms"


# -- a worker: one variant, one turn at a time -----------------------------------------------------


def _serve(case: str, variant: str, *, threads: int) -> None:
    import tensorflow as tf

    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    tf.config.experimental.enable_op_determinism()
    if case in ENGINE_CASES:
        _engine(case, variant, threads)
    elif variant == "determined":
        _determined(case, threads)
    else:
        from detcore.trial import PrepareOptions
        from detcore_estimator.worker_setup import prepare_worker

        prepare_worker(PrepareOptions(seed=1))
        if variant in ("fast", "hooks", "detcore"):
            _detcore(case, variant, threads)
        elif case == "steady":
            _bare_steady(variant, threads)
        else:
            _repeat(lambda: _bare_schedule(threads))


_started: list[float] = []


def _wait(first: bool = False) -> None:
    """End a turn, and wait for the next turn. Exits when the parent is done."""
    if first:
        print("@ready", flush=True)
    else:
        wall, cpu = time.perf_counter() - _started[0], time.process_time() - _started[1]
        print("@" + json.dumps([wall, cpu]), flush=True)
    if not sys.stdin.readline():
        os._exit(0)
    _started[:] = [time.perf_counter(), time.process_time()]


def _repeat(turn: Callable[[], None]) -> None:
    turn()
    _wait(first=True)
    while True:
        turn()
        _wait()


def _every_turn(units: int) -> None:
    """Count the units of a session that never ends. The first two turns warm up."""
    turns, remainder = divmod(units, TURN // UNIT)
    if remainder == 0 and turns >= 2:
        _wait(first=turns == 2)


# -- the model and its data ------------------------------------------------------------------------


def _model_fn(kinds: Any, wrap: Callable[[Any], Any] = lambda optimizer: optimizer) -> Any:
    """Return a model function. `kinds` is the module that defines EstimatorSpec."""
    import tensorflow as tf

    tf1 = tf.compat.v1

    def dense(inputs: Any, units: int, name: str) -> Any:
        with tf1.variable_scope(name):
            kernel = tf1.get_variable("kernel", [inputs.shape[-1], units])
            bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
        return tf.matmul(inputs, kernel) + bias

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        logits = dense(tf.nn.relu(dense(features, 64, "hidden")), 10, "logits")
        classes = tf.argmax(logits, axis=1)
        if mode == "infer":
            return kinds.EstimatorSpec(mode, predictions={"class": classes, "logits": logits})
        loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
        if mode == "eval":
            metrics = {"accuracy": tf1.metrics.accuracy(labels, classes)}
            return kinds.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
        optimizer = wrap(tf1.train.AdamOptimizer(1e-3))
        train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
        return kinds.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _training_data() -> Any:
    return _records(RECORDS).shuffle(RECORDS, seed=1).batch(BATCH)


def _validation_data(batches: int) -> Any:
    return _records(BATCH * batches).batch(BATCH)


def _records(count: int) -> Any:
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, count)
    return tf.data.Dataset.from_tensor_slices((rng.random((count, 64), dtype="float32"), labels))


def _run_config(kinds: Any, threads: int, **settings: Any) -> Any:
    import tensorflow as tf

    session = tf.compat.v1.ConfigProto(
        allow_soft_placement=True,
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=threads,
    )
    session.graph_options.rewrite_options.meta_optimizer_iterations = 1
    return kinds.RunConfig(session_config=session, tf_random_seed=1, **settings)


def _hooks() -> list[Any]:
    """Return a hook that fetches nothing, and a hook that fetches the loss."""
    import tensorflow as tf

    tf1 = tf.compat.v1

    class Count(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        steps = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.steps += 1

    class Loss(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        last = 0.0

        def begin(self) -> None:
            self.loss = tf1.get_collection(tf1.GraphKeys.LOSSES)[0]

        def before_run(self, run_context: Any) -> Any:
            return tf1.train.SessionRunArgs(self.loss)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.last = run_values.results

    return [Count(), Loss()]


# -- tf.estimator alone ----------------------------------------------------------------------------


def _bare_steady(variant: str, threads: int) -> None:
    import tensorflow as tf

    # tf.estimator's own hook calls it every 100 steps to log the speed. A turn that ends there
    # needs no additional hook, which would cost time at each step.
    units = itertools.count(1)
    tf.compat.v1.train.StepCounterHook._log_and_record = lambda *_: _every_turn(next(units))
    config = _run_config(tf.estimator, threads, save_checkpoints_secs=1 << 30)
    estimator = tf.estimator.Estimator(_model_fn(tf.estimator), _folder(), config)
    hooks = _hooks() if variant == "bare hooks" else None
    estimator.train(lambda: _training_data().repeat(), hooks=hooks)


def _bare_schedule(threads: int) -> None:
    import tensorflow as tf

    config = _run_config(tf.estimator, threads)
    estimator = tf.estimator.Estimator(_model_fn(tf.estimator), _folder(), config)
    for _ in range(SIZES["cycles"]):
        estimator.train(lambda: _training_data().repeat(), steps=UNIT)
        estimator.evaluate(lambda: _validation_data(EVALUATION))


# -- detcore's trial -------------------------------------------------------------------------------


class _TurnClock(BenchmarkClock):
    """A clock with a boundary after each unit, for a session that never ends."""

    def __init__(self) -> None:
        super().__init__(every=UNIT, batches_per_epoch=RECORDS // BATCH)
        self.length = 1 << 40

    def at_boundary(self, steps: int) -> bool:
        _every_turn(steps // UNIT)
        return True


class _ScheduleClock(_TurnClock):
    """A clock that validates at each boundary, and ends with a checkpoint."""

    def __init__(self, controller: Any, folder: Path) -> None:
        super().__init__()
        self.length = SIZES["cycles"] * UNIT
        self._controller, self._folder = controller, folder

    def at_boundary(self, steps: int) -> bool:
        self._controller.validate()
        if steps < self.length:
            return True
        self._controller.save(self._folder)
        return False


def _detcore(case: str, variant: str, threads: int) -> None:
    from detcore_estimator.estimator_controller import EstimatorController

    def controller() -> Any:
        context = _context(Path(_folder()))
        return EstimatorController(_trial(variant, threads)(context), context)

    def schedule() -> None:
        one = controller()
        one.run(_ScheduleClock(one, Path(_folder())))
        one.close()

    if case == "steady":
        controller().run(_TurnClock())
    else:
        _repeat(schedule)


def _trial(variant: str, threads: int) -> Any:
    import tensorflow as tf

    from detcore_estimator import EstimatorTrial

    class Trial(_TrialMethods, EstimatorTrial):
        run_config = _run_config(tf.estimator, threads)
        hooks = _hooks() if variant == "hooks" else None

    return Trial


class _TrialMethods:
    """The methods of a trial, for detcore and for Determined."""

    run_config: Any
    hooks: Any = None

    def __init__(self, context: Any) -> None:
        self.context = context

    def build_estimator(self) -> Any:
        import tensorflow as tf

        model_fn = _model_fn(tf.estimator, self.context.wrap_optimizer)
        return tf.estimator.Estimator(model_fn, config=self.run_config)

    def build_train_spec(self) -> Any:
        import tensorflow as tf

        return tf.estimator.TrainSpec(
            lambda: self.context.wrap_dataset(_training_data()), hooks=self.hooks
        )

    def build_validation_spec(self) -> Any:
        import tensorflow as tf

        return tf.estimator.EvalSpec(
            lambda: self.context.wrap_dataset(_validation_data(EVALUATION)), steps=None
        )


def _context(folder: Path) -> Any:
    from detcore_estimator import EstimatorTrialContext

    return EstimatorTrialContext(make_setup(folder, BATCH))


# -- Determined's trial, without a master ----------------------------------------------------------


def _determined(case: str, threads: int) -> None:
    # Determined writes TensorBoard files to a directory with this name.
    os.environ["DET_ALLOCATION_ID"] = f"benchmark-{os.getpid()}"
    _put_back_tracking()
    import determined as det  # type: ignore[import-not-found]
    import tensorflow as tf
    from determined import core, errors, estimator

    folder = Path(_folder())
    os.chdir(_folder())  # Each checkpoint has a copy of the working directory.
    config = {"hyperparameters": {"global_batch_size": BATCH}, "reproducibility": {}}
    _, env = det._make_local_execution_env(True, False, config, str(folder))
    controllers = estimator.EstimatorTrialController
    controllers.pre_execute_hook(env, det._DistributedBackend())

    class Trial(_TrialMethods, estimator.EstimatorTrial):  # type: ignore[misc]
        run_config = _run_config(tf.estimator, threads)

    def run(work: Iterator[Any]) -> None:
        context = Trial.trial_context_class(
            core._dummy_init(checkpoint_storage=str(folder / "checkpoints")), env
        )
        controller = controllers.from_trial(Trial(context), context, env, work)
        with contextlib.suppress(errors.WorkerFinishedGracefully):
            controller.run()

    if case == "steady":
        run(_determined_work(is_schedule=False))
    else:
        _repeat(lambda: run(_determined_work(is_schedule=True)))


def _put_back_tracking() -> None:
    """Give a module the old name that Determined 0.23.4 imports. TensorFlow 2.10 renamed it."""
    from tensorflow.python.trackable import autotrackable

    package = types.ModuleType("tensorflow.python.training.tracking")
    package.tracking = autotrackable  # type: ignore[attr-defined]
    sys.modules[package.__name__] = package
    sys.modules[f"{package.__name__}.tracking"] = autotrackable


def _determined_work(*, is_schedule: bool) -> Iterator[Any]:
    """Yield the operations of the trial, in the order of Determined's loop."""
    from determined.workload import Workload  # type: ignore[import-not-found]

    for unit in itertools.count(1):
        yield Workload(Workload.Kind.RUN_STEP, 1, 1, unit, UNIT, UNIT * (unit - 1)), _ignore
        if not is_schedule:
            _every_turn(unit)
            continue
        evaluate = Workload.Kind.COMPUTE_VALIDATION_METRICS
        yield Workload(evaluate, 1, 1, unit, 0, UNIT * unit), _ignore
        if unit == SIZES["cycles"]:
            yield Workload(Workload.Kind.CHECKPOINT_MODEL, 1, 1, unit, 0, UNIT * unit), _ignore
            return


def _ignore(response: Any) -> None:
    pass


# -- the stand-alone engine ------------------------------------------------------------------------


def _engine(case: str, variant: str, threads: int) -> None:
    import tensorflow as tf

    import detcore_estimator

    kinds: Any = detcore_estimator if variant == "detcore" else tf.estimator
    config = _run_config(kinds, threads)
    model_fn = _model_fn(kinds)

    def fresh() -> Any:
        return kinds.Estimator(model_fn, _folder(), config)

    def train(estimator: Any, steps: int, hooks: Any = None) -> None:
        estimator.train(lambda: _training_data().repeat(), steps=steps, hooks=hooks)

    def short_trains() -> None:
        estimator = fresh()
        for _ in range(TURN // UNIT):
            train(estimator, UNIT)

    trained = fresh()
    train(trained, 1)
    turns: dict[str, Callable[[], Any]] = {
        "train": lambda: train(fresh(), TURN),
        "train hooks": lambda: train(fresh(), TURN, _hooks()),
        "short trains": short_trains,
        "evaluate": lambda: trained.evaluate(lambda: _validation_data(TURN)),
        "predict": lambda: list(trained.predict(lambda: _validation_data(UNIT))),
    }
    _repeat(turns[case])


def _folder() -> str:
    """Return a new directory. The parent removes it at the end."""
    return tempfile.mkdtemp()


if __name__ == "__main__":
    main()
