"""The loader: order, memory, randomness, failures, and released resources.

The tests start and kill real processes. They do not need TensorFlow.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import loader_sequences as sequences
import numpy as np
import pytest

from detcore.errors import DataError
from detcore_keras.data.sequence_loader import SequenceLoader

# The first warm start of a process opens a connection to the zygote, but these tests count
# descriptors.
pytestmark = pytest.mark.cold

KINDS = {
    "calling thread": {"workers": 0},
    "threads": {"workers": 2},
    "one process": {"workers": 1, "use_multiprocessing": True},
    "processes": {"workers": 2, "use_multiprocessing": True},
}
ISOLATED = ["calling thread", "one process", "processes"]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    descriptors = set(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())
    yield
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert set(threading.enumerate()) <= threads
    assert children() == []


def children(pid: int | None = None) -> list[int]:
    """Return the loader's processes below a process."""
    pids = []
    for child in _children(pid or os.getpid()):
        if _runs_loader(child):
            pids += [child, *children(child)]
    return pids


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def wait_for(condition: Callable[[], Any], timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise TimeoutError("the condition did not come true")


def make(sequence: Any, kind: str, **settings: Any) -> contextlib.closing[SequenceLoader]:
    defaults = {"use_multiprocessing": False, "max_queue_size": 10, "seed": 0}
    return contextlib.closing(SequenceLoader(sequence, **{**defaults, **KINDS[kind], **settings}))


def take(loader: SequenceLoader, indices: Any) -> list[Any]:
    return [list(batch) for batch in loader.read_items(indices)]


def workers() -> list[int]:
    """Return the process ids of the loader's workers, without the process that forked them."""
    return [pid for pid in children() if pid not in _children(os.getpid())]


def equal(one: Any, other: Any) -> bool:
    """Whether two items have the same structure, types and values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


# -- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_items_come_in_requested_order(kind: str) -> None:
    indices = [3, 1, 4, 1, 5, 9, 2, 6, 0, 19]
    with make(sequences.Slow(), kind, max_queue_size=4) as loader:
        items = take(loader, np.array(indices))
        assert [int(item[0][0]) for item in items] == indices
        assert take(loader, []) == []
        pids = {int(item[1][0]) for item in items}
        assert pids == (set(workers()) or {os.getpid()})


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("ahead", [1, 3])
def test_prepared_items_are_limited_by_queue_size(kind: str, ahead: int, tmp_path: Path) -> None:
    count = tmp_path / "count"
    with make(sequences.Counting(str(count)), kind, max_queue_size=ahead) as loader:
        batches = loader.read_items(range(50))
        for num_items in range(1, 4):
            next(batches)
            time.sleep(0.1)
            assert num_items <= count.stat().st_size <= num_items + ahead
        batches.close()


@pytest.mark.parametrize("kind", KINDS)
def test_iterator_can_be_dropped_at_any_item(kind: str) -> None:
    with make(sequences.Plain(), kind, max_queue_size=3) as loader:
        for count in range(6):
            batches = loader.read_items(range(20))
            for expected in range(count):
                assert next(batches)[0][0, 0] == expected
            del batches
        assert [item[0][0, 0] for item in take(loader, range(20))] == list(range(20))


def test_dropped_items_are_not_prepared(tmp_path: Path) -> None:
    count = tmp_path / "count"
    with make(sequences.SlowlyCounting(str(count)), "one process", max_queue_size=20) as loader:
        batches = loader.read_items(range(20))
        next(batches)
        batches.close()
        take(loader, [1])
        assert count.stat().st_size < 20  # the other 19 take 5.7 s


# -- contents -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "give", [sequences.nested, sequences.all_types, sequences.growing, sequences.changing_types]
)
def test_items_arrive_unchanged(kind: str, give: Any) -> None:
    with make(sequences.Given(give, 12), kind, max_queue_size=3) as loader:
        for index, batch in enumerate(loader.read_items(range(12))):
            assert equal(batch, give(index))


def test_items_stay_unchanged_after_close() -> None:
    with make(sequences.Given(sequences.growing, 30), "one process", max_queue_size=1) as loader:
        items = take(loader, range(30))
    assert all(equal(tuple(item), sequences.growing(index)) for index, item in enumerate(items))


def test_unpicklable_item_is_named() -> None:
    with (
        make(sequences.Given(sequences.foreign), "processes") as loader,
        pytest.raises(
            DataError, match=r"Given\[0\] failed in .*: TypeError: cannot pickle 'module'"
        ),
    ):
        next(loader.read_items([0]))


# -- randomness -----------------------------------------------------------------------------------


def test_random_items_do_not_depend_on_workers() -> None:
    """Orders that the Sequence shuffles do not depend on workers either."""
    epochs_by_kind = {}
    for kind in ISOLATED:
        random.seed(kind)
        np.random.seed(len(kind))
        sequence = sequences.Shuffled()
        epochs = []
        with make(sequence, kind, seed=5) as loader:
            for _ in range(4):
                epochs.append(take(loader, range(20)))
                assert [int(item[0][0]) for item in epochs[-1]] == sequence.order
                loader.end_epoch()
        epochs_by_kind[kind] = epochs
        with make(sequences.Shuffled(), kind, seed=5) as loader:  # in the middle of the last epoch
            for _ in range(3):
                loader.end_epoch()
            assert equal(take(loader, range(13, 20)), epochs[3][13:])
    orders = {tuple(int(item[0][0]) for item in epoch) for epoch in epochs_by_kind["processes"]}
    assert len(orders) == 4
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert equal(epochs_by_kind["calling thread"], epochs_by_kind["one process"])
    assert equal(epochs_by_kind["calling thread"], epochs_by_kind["processes"])


def test_attribute_generators_ignore_worker_count() -> None:
    def second_epoch(kind: str, first: int, state: Any = None, **options: Any) -> tuple[Any, Any]:
        with make(sequences.OwnGenerators(**options), kind, seed=5) as loader:
            if state is None:
                take(loader, range(20))
                loader.end_epoch()
            else:
                loader.load_state(json.loads(json.dumps(state)))
            return take(loader, range(first, 20)), loader.state_dict()

    expected, _ = second_epoch("calling thread", 0)
    assert len({value for x, y in expected for value in (*x, *y[1:])}) == 20 * 5
    for kind in ISOLATED:
        items, state = second_epoch(kind, 0)
        assert equal(items, expected)
        assert equal(second_epoch(kind, 13, state)[0], expected[13:])
    other, _ = second_epoch("calling thread", 0, seed=3)
    assert not equal(other, expected)
    # A randomly seeded generator continues with its first seed.
    items, state = second_epoch("calling thread", 0, seed=None)
    assert equal(second_epoch("one process", 13, state, seed=None)[0], items[13:])


@pytest.mark.parametrize("kind", ["OwnGenerators", "Random", "Plain"])
def test_generators_used_in_threads_are_logged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with make(getattr(sequences, kind)(), "threads") as loader:
        take(loader, range(2))
    assert ("numbers depend on timing" in caplog.text) is (kind != "Plain")


def test_changed_generators_are_rejected() -> None:
    with make(sequences.OwnGenerators(), "calling thread") as loader:
        state = loader.state_dict()
    with (
        make(sequences.Plain(), "calling thread") as loader,
        pytest.raises(DataError, match="3 random generator"),
    ):
        loader.load_state(state)


@pytest.mark.parametrize("kind", ISOLATED)
def test_items_depend_on_seed_epoch_and_index(kind: str) -> None:
    values = []
    for seed in (0, 1):
        with make(sequences.Random(), kind, seed=seed) as loader:
            for _ in range(2):
                values += [(*x, y[0]) for x, y in take(loader, [0, 1])]
                loader.end_epoch()
    assert len({value for item in values for value in item}) == 8 * 4


@pytest.mark.parametrize("kind", ISOLATED)
def test_process_generators_stay_unchanged(kind: str) -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    with make(sequences.Shuffled(), kind) as loader:
        take(loader, range(5))
        loader.end_epoch()
        take(loader, range(5))
    assert (random.random(), np.random.rand()) == expected


# -- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_item_errors_carry_user_traceback(kind: str) -> None:
    with make(sequences.Failing(), kind) as loader:
        batches = loader.read_items(range(20))
        for _ in range(7):
            next(batches)
        with pytest.raises(DataError) as caught:
            next(batches)
        text = str(caught.value)
        assert re.match(r"Failing\[7\] failed( in worker process \d+)?: KeyError: 'no such", text)
        assert ("in worker process" in text.splitlines()[0]) == ("process" in kind)
        assert "no such file: img_0007.png — ünïcode" in text
        frames = re.findall(r'File "(.*)", line \d+, in (\w+)', text)
        assert [name for _, name in frames] == ["__getitem__", "deeper"]
        assert all(file == sequences.__file__ for file, _ in frames)
        assert len(take(loader, range(8, 20))) == 12  # the loader itself is not broken


def test_killed_worker_is_reported_with_its_item() -> None:
    with make(sequences.Killed(), "processes") as loader:
        began = time.monotonic()
        with pytest.raises(DataError) as caught:
            take(loader, range(20))
        assert time.monotonic() - began < 60
        assert re.match(
            r"worker process \d+ of Killed ended at item 5: killed by SIGKILL \(the kernel "
            r"does so when memory runs out\)\.\n.*\nResume the experiment",
            str(caught.value),
        )
        with pytest.raises(DataError, match="ended at item 5"):  # and does not hang afterwards
            take(loader, range(20))


def test_exited_worker_is_reported_with_its_code() -> None:
    with (
        make(sequences.Exiting(), "one process") as loader,
        pytest.raises(DataError, match=r"Exiting ended at item 3: exit code 3\."),
    ):
        take(loader, [3])


def test_worker_killed_between_items_is_reported() -> None:
    with make(sequences.Slow(), "one process") as loader:
        take(loader, [0])
        (worker,) = workers()
        status = Path(f"/proc/{worker}/stat")
        wait_for(lambda: ") S " in status.read_text())  # sleeping
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(DataError, match="Slow ended at item 0: killed by SIGKILL"):
            take(loader, range(20))


def test_workers_outlive_their_server() -> None:
    with make(sequences.Slow(), "processes") as loader:
        take(loader, [0])
        server, *_ = children()
        pids = workers()
        os.kill(server, signal.SIGKILL)
        assert len(take(loader, range(4))) == 4
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(DataError, match="its server process has also ended"):
            take(loader, range(4))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_workers_ignore_signals_to_process_group(number: signal.Signals) -> None:
    """The parent still needs items until the batch boundary where it checkpoints."""
    with make(sequences.Slow(), "processes") as loader:
        take(loader, [0])
        for pid in children():
            os.kill(pid, number)
        assert len(take(loader, range(4))) == 4


def test_slow_item_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detcore_keras.data import item_processes

    with make(sequences.Slow(), "one process") as loader:
        take(loader, [0])
        monkeypatch.setattr(item_processes, "_SLOW_ITEM_S", 0.02)
        take(loader, [2])
    assert "item 2 of Slow is in preparation for more than" in caplog.text


# -- sequences that cannot be sent ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequence", "reason"),
    [
        (sequences.WithLambda(), "WithLambda cannot be pickled"),
        (sequences.WithLock(), "WithLock cannot be pickled: cannot pickle '_thread.lock'"),
        (sequences.Refuses(), "OSError: the data file is locked by another process"),
    ],
)
def test_unpicklable_sequence_uses_threads(
    sequence: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with make(sequence, "processes") as loader, caplog.at_level(logging.WARNING):
        assert [item[0][0, 0] for item in take(loader, range(20))] == list(range(20))
        assert children() == []
    assert reason in caplog.text
    assert "Threads prepare the items" in caplog.text


def test_class_of_main_script_uses_threads(tmp_path: Path) -> None:
    script = """
        import numpy as np
        from detcore_keras.data.sequence_loader import SequenceLoader
        class Mine:
            def __getitem__(self, index): return np.array([index]), None
        loader = SequenceLoader(
            Mine(), workers=1, use_multiprocessing=True, max_queue_size=1, seed=0
        )
        print([int(x[0]) for x, _ in loader.read_items(range(3))])
        loader.close()
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    result = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "[0, 1, 2]\n"
    assert "__main__.Mine is defined in the script that runs" in result.stderr


def test_user_module_is_found_in_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_own_module.py").write_text(
        "import numpy as np\nclass Mine:\n"
        "    def __getitem__(self, index): return np.array([index]), None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from users_own_module import Mine  # type: ignore[import-not-found]

    with make(Mine(), "processes") as loader:
        assert len(take(loader, range(3))) == 3
        assert len(workers()) == 2


# -- shutdown -------------------------------------------------------------------------------------


def test_worker_death_ends_wait_for_stuck_item() -> None:
    with make(sequences.Given(sequences.stuck), "processes") as loader:
        batches = loader.read_items(range(3))
        next(batches)
        for pid in workers():
            threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(DataError, match=r"Given ended at item [12]: killed by SIGKILL"):
            next(batches)


@pytest.mark.parametrize("give", [sequences.stuck, sequences.stuck_deaf])
def test_close_is_quick_with_stuck_workers(give: Any) -> None:
    with make(sequences.Given(give, 9), "processes", max_queue_size=4) as loader:
        next(loader.read_items(range(5)))
        began = time.monotonic()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("moment", ["before the first item", "between items", "inside an item"])
def test_workers_end_with_killed_parent(moment: str, tmp_path: Path) -> None:
    script = f"""
        import sys, threading, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import loader_sequences as sequences
        from detcore_keras.data.sequence_loader import SequenceLoader
        moment = {moment!r}
        sequence = sequences.Given(sequences.stuck, 9) if moment == "inside an item" else (
            sequences.Plain())
        loader = SequenceLoader(
            sequence, workers=2, use_multiprocessing=True, max_queue_size=9, seed=0
        )
        batches = loader.read_items(range(9))
        if moment == "before the first item":
            threading.Thread(target=next, args=(batches,), daemon=True).start()
        else:
            next(batches)
        print("ready", flush=True)
        time.sleep(100)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        started = wait_for(lambda: children(parent.pid))
        shared = set[str]().union(*map(_files_of_shared_memory, (parent.pid, *started)))
    finally:
        parent.kill()
        parent.communicate()
    wait_for(lambda: not any(map(_runs_loader, started)))
    wait_for(lambda: not any(map(os.path.exists, shared)))


def _files_of_shared_memory(pid: int) -> set[str]:
    """Return the named shared memory files that a process has mapped or opened."""
    paths = set(Path(f"/proc/{pid}/maps").read_text().split())
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            paths.add(os.readlink(link))
    return {path for path in paths if path.startswith("/dev/shm/")}


def _runs_loader(pid: int) -> bool:
    try:
        return "detcore_keras.data.item_processes" in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_consumer_error_releases_resources() -> None:
    def consume() -> None:
        with make(sequences.Plain(), "processes") as loader:
            for _ in loader.read_items(range(20)):
                raise RuntimeError("training failed")

    with pytest.raises(RuntimeError, match="training failed"):
        consume()
    # the fixture checks processes, threads and descriptors


def test_unused_loader_starts_no_workers() -> None:
    with make(sequences.Plain(), "processes") as loader:
        loader.end_epoch()
        assert children() == []


def test_workers_use_no_framework_and_no_gpu(tmp_path: Path) -> None:
    script = """
        import json, sys
        import detcore_keras.data.sequence_loader
        heavy = {"tensorflow", "keras", "pydantic", "sqlalchemy"}
        print(json.dumps(sorted(heavy & set(sys.modules))))
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert json.loads(result.stdout) == []
    with make(sequences.Given(sequences.visible_gpus), "one process") as loader:
        assert next(loader.read_items([0]))[0] == ""
