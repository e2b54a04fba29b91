"""Snapshots of a whole trial: taken at a batch, written while training goes on, or after it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import FEATURES, Classifier, FakeClock, make_context, variables_in
from test_controller import Listener, Recorder
from test_exact_resume import Averaged, NormalizedBatches, PartialSaver, StreamingMetric
from test_exports import Serving, logits_of, predict

from detcore.trial import SupportsSnapshot, SupportsTensors
from detcore_estimator._controller import EstimatorController
from detcore_estimator._tf import tf, tf1

STEM = "model.ckpt"


class SnapshotClock(FakeClock):
    """Takes snapshots where `FakeClock` saves, and writes them `delay` boundaries later."""

    delay = 1

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._writes: list[tuple[int, Callable[[], None]]] = []
        self.pending: list[Path] = []
        super().__init__(*arguments, **settings)

    def boundary(self, *arguments: Any, **settings: Any) -> bool:
        goes_on = super().boundary(*arguments, **settings)
        due = [write for number, write in self._writes if number == 0]
        self._writes = [(number - 1, write) for number, write in self._writes if number > 0]
        for write in due:
            in_thread(write)
        return goes_on

    def save(self, folder: Path) -> None:
        self.write_all()  # at most one is outstanding
        folder.mkdir(parents=True)
        write = self.controller.snapshot(folder)
        self._writes.append((self.delay, write))
        if not list(folder.glob("model.ckpt*")):
            self.pending.append(folder)

    def write_all(self) -> None:
        for _, write in self._writes:
            in_thread(write)
        self._writes = []


def in_thread(write: Callable[[], None]) -> None:
    """Call it on another thread and raise what it raises."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001  (raised below)
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def run(
    trial_class: type[Classifier],
    tmp_path: Path,
    directory: Path,
    *,
    clock: type[FakeClock] = SnapshotClock,
    until: int = 13,
    resume: int = 0,
    stop_at: int = 0,
) -> FakeClock:
    """Train; what is not written when training ends is written when the controller is closed."""
    np.random.seed(5)
    context = make_context(tmp_path)
    controller = EstimatorController(trial_class(context), context)
    if resume:
        controller.restore(directory / str(resume))
    made = clock(
        controller,
        until=until,
        unit=2,
        save_every=4,
        directory=directory,
        context=context,
        start=resume,
        stop_at=stop_at,
    )
    try:
        controller.run(made)
    finally:
        controller.close()
    if isinstance(made, SnapshotClock):
        made.write_all()
    return made


def files_in(folder: Path) -> dict[str, bytes]:
    """All files by name, with the content of those that are the same in every run.

    Graphs name the functions of a process. The position in the data holds what was read ahead,
    which is more or less as threads happen to run (that it resumes exactly is tested elsewhere).
    """
    found = {}
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        if path.name.startswith(("graph.pbtxt", f"{STEM}-{folder.name}.meta", "data-iterator.")):
            content = b""
        elif path.name == "estimator-position.json":
            content = re.sub(rb'"complete": (true|false)', b"", content)
        found[path.name] = content
    return found


def test_the_controller_says_what_it_can(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    controller = EstimatorController(Classifier(context), context)
    assert isinstance(controller, SupportsSnapshot)
    assert isinstance(controller, SupportsTensors)
    controller.close()


CASES = [Classifier, Averaged, PartialSaver, NormalizedBatches, StreamingMetric]


@pytest.mark.parametrize("trial_class", CASES, ids=lambda case: case.__name__)
def test_a_snapshot_is_what_a_save_would_have_been(
    tmp_path: Path, trial_class: type[Classifier]
) -> None:
    saved = run(trial_class, tmp_path, tmp_path / "saved", clock=FakeClock)
    copied = run(trial_class, tmp_path, tmp_path / "copied")

    assert copied.batches == saved.batches
    assert isinstance(copied, SnapshotClock)
    assert [folder.name for folder in copied.pending] == ["4", "8", "12", "13"]
    for step in ("4", "8", "12", "13"):
        expected = files_in(tmp_path / "saved" / step)
        assert files_in(tmp_path / "copied" / step) == expected
        assert f"model.ckpt-{step}.index" in expected


def test_a_run_resumed_from_snapshots_ends_like_one_never_interrupted(tmp_path: Path) -> None:
    straight = run(Classifier, tmp_path, tmp_path / "straight")
    stopped = run(Classifier, tmp_path, tmp_path / "stopped", stop_at=8)
    resumed = run(Classifier, tmp_path, tmp_path / "stopped", resume=8)

    assert stopped.batches + resumed.batches == straight.batches
    last = files_in(tmp_path / "straight" / "13")
    assert files_in(tmp_path / "stopped" / "13") == last


def test_exported_models_have_the_variables_of_their_checkpoint(tmp_path: Path) -> None:
    run(Serving, tmp_path, tmp_path / "copied")

    for step in ("4", "13"):
        checkpoint = tmp_path / "copied" / step
        variables = variables_in(checkpoint)
        for name, factor in (("raw", 1), ("doubled", 2)):
            [folder] = (checkpoint / name).iterdir()
            expected = logits_of(variables, FEATURES * factor)
            np.testing.assert_allclose(predict(folder, FEATURES), expected, rtol=1e-5, atol=1e-6)


def test_hooks_that_add_files_and_listeners_find_everything_written(tmp_path: Path) -> None:
    calls: list[str] = []

    class Hooked(Serving):
        hooks = (Recorder("a", calls),)

    class Listening(Serving):
        listeners = (Listener(),)

    for trial_class in (Hooked, Listening):
        folder = tmp_path / trial_class.__name__
        clock = run(trial_class, tmp_path, folder, until=4)
        assert isinstance(clock, SnapshotClock)
        assert clock.pending == []
        assert (folder / "4" / "raw").is_dir()
    assert calls.count("a.on_checkpoint_end") == 1


def test_other_hooks_do_not_keep_training_waiting(tmp_path: Path) -> None:
    class Quiet(tf1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow has no types
        pass

    class Hooked(Classifier):
        hooks = (Quiet(),)

    clock = run(Hooked, tmp_path, tmp_path / "copied", until=4)
    assert isinstance(clock, SnapshotClock)
    assert [folder.name for folder in clock.pending] == ["4"]


def test_tensors_are_named_with_the_files_that_hold_them(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    controller = EstimatorController(StreamingMetric(context), context)
    folder = tmp_path / "copied"
    folder.mkdir()
    write = controller.snapshot(folder)
    told = {(info.name, info.file): info for info in controller.tensors()}
    controller.close()
    in_thread(write)

    found = set()
    for index in folder.glob("*.ckpt*.index"):
        prefix = index.with_suffix("")
        reader = tf.train.load_checkpoint(str(prefix))
        types = reader.get_variable_to_dtype_map()
        for name, shape in reader.get_variable_to_shape_map().items():
            info = told[name, f"{prefix.name}.data-00000-of-00001"]
            assert (folder / info.file).is_file()
            assert (list(info.shape), info.dtype) == (shape, tf.as_dtype(types[name]).name)
            json.dumps(info.shape)
            found.add((name, info.file))
    assert found == set(told)
    assert len(list(folder.glob("*.ckpt*.index"))) == 2


def test_a_write_that_fails_raises_and_the_next_one_is_good(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    controller = EstimatorController(Classifier(context), context)
    folders = [tmp_path / "gone", tmp_path / "good"]
    for folder in folders:
        folder.mkdir()
    write = controller.snapshot(folders[0])
    for path in folders[0].iterdir():
        path.unlink()
    folders[0].rmdir()
    folders[0].write_text("a file in its place")
    with pytest.raises(tf.errors.OpError):
        in_thread(write)
    in_thread(controller.snapshot(folders[1]))
    assert "global_step" in variables_in(folders[1])
    controller.close()


def test_a_snapshot_before_the_first_step_and_one_that_is_given_up(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    controller = EstimatorController(Classifier(context), context)
    folders = [tmp_path / "given-up", tmp_path / "written"]
    for folder in folders:
        folder.mkdir()
    controller.snapshot(folders[0])
    write = controller.snapshot(folders[1])
    controller.close()
    in_thread(write)
    assert variables_in(folders[1])["global_step"] == 0
    assert not list(folders[0].glob("*.ckpt*"))


def test_a_folder_whose_path_is_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "run [1] *" / "4"
    clock = run(Serving, tmp_path, folder.parent, until=4)
    assert isinstance(clock, SnapshotClock)
    assert sorted(path.name for path in folder.glob("model.ckpt-4.*")) == [
        "model.ckpt-4.data-00000-of-00001",
        "model.ckpt-4.index",
        "model.ckpt-4.meta",
    ]
    assert len(list((folder / "raw").iterdir())) == 1


def test_the_graph_text_is_read_by_tensorflow(tmp_path: Path) -> None:
    run(Classifier, tmp_path, tmp_path / "copied", until=4)
    folder = tmp_path / "copied" / "4"
    with tf.Graph().as_default(), tf1.Session() as session:
        saver = tf1.train.import_meta_graph(str(folder / "model.ckpt-4.meta"))
        saver.restore(session, str(folder / "model.ckpt-4"))
        step = session.run(tf1.train.get_global_step())
    assert step == 4
