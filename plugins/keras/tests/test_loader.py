"""The loader: order, memory, randomness, failures, and nothing left behind.

Processes are real, and so are their deaths. None of it needs TensorFlow.
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

# The first warm start of a process opens a connection to the zygote, and descriptors are counted.
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
    """Return the loader's processes below one process."""
    found = []
    for child in _children(pid or os.getpid()):
        if _runs_loader(child):
            found += [child, *children(child)]
    return found


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
    return [list(batch) for batch in loader.batches(indices)]


def workers() -> list[int]:
    """Return the process ids of the loader's workers, without the process that forked them."""
    return [pid for pid in children() if pid not in _children(os.getpid())]


def equal(one: Any, other: Any) -> bool:
    """Whether two items are the same: structure, types, values."""
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
def test_items_come_in_the_order_asked_for(kind: str) -> None:
    indices = [3, 1, 4, 1, 5, 9, 2, 6, 0, 19]
    with make(sequences.Slow(), kind, max_queue_size=4) as loader:
        items = take(loader, np.array(indices))
        assert [int(item[0][0]) for item in items] == indices
        assert take(loader, []) == []
        pids = {int(item[1][0]) for item in items}
        assert pids == (set(workers()) or {os.getpid()})


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("ahead", [1, 3])
def test_no_more_than_the_queue_is_prepared_ahead(kind: str, ahead: int, tmp_path: Path) -> None:
    count = tmp_path / "count"
    with make(sequences.Counting(str(count)), kind, max_queue_size=ahead) as loader:
        batches = loader.batches(range(50))
        for taken in range(1, 4):
            next(batches)
            time.sleep(0.1)
            assert taken <= count.stat().st_size <= taken + ahead
        batches.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_may_be_dropped_at_any_item(kind: str) -> None:
    with make(sequences.Plain(), kind, max_queue_size=3) as loader:
        for count in range(6):
            batches = loader.batches(range(20))
            for expected in range(count):
                assert next(batches)[0][0, 0] == expected
            del batches
        assert [item[0][0, 0] for item in take(loader, range(20))] == list(range(20))


def test_dropped_items_are_not_prepared(tmp_path: Path) -> None:
    count = tmp_path / "count"
    with make(sequences.SlowlyCounting(str(count)), "one process", max_queue_size=20) as loader:
        batches = loader.batches(range(20))
        next(batches)
        batches.close()
        take(loader, [1])
        assert count.stat().st_size < 20  # the other 19 take 5.7 s


# -- contents -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "give", [sequences.nested, sequences.all_types, sequences.growing, sequences.changing_types]
)
def test_items_arrive_as_they_were_made(kind: str, give: Any) -> None:
    with make(sequences.Given(give, 12), kind, max_queue_size=3) as loader:
        for index, batch in enumerate(loader.batches(range(12))):
            assert equal(batch, give(index))


def test_items_stay_as_they_are_when_the_loader_continues_or_closes() -> None:
    with make(sequences.Given(sequences.growing, 30), "one process", max_queue_size=1) as loader:
        items = take(loader, range(30))
    assert all(equal(tuple(item), sequences.growing(index)) for index, item in enumerate(items))


def test_what_cannot_travel_is_named() -> None:
    with (
        make(sequences.Given(sequences.foreign), "processes") as loader,
        pytest.raises(
            DataError, match=r"Given\[0\] failed in .*: TypeError: cannot pickle 'module'"
        ),
    ):
        next(loader.batches([0]))


# -- randomness -----------------------------------------------------------------------------------


def test_random_items_do_not_depend_on_who_prepares_them_or_on_restarts() -> None:
    """Neither do orders of the Sequence's own, which workers follow."""
    found = {}
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
        found[kind] = epochs
        with make(sequences.Shuffled(), kind, seed=5) as loader:  # in the middle of the last epoch
            for _ in range(3):
                loader.end_epoch()
            assert equal(take(loader, range(13, 20)), epochs[3][13:])
    orders = {tuple(int(item[0][0]) for item in epoch) for epoch in found["processes"]}
    assert len(orders) == 4
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert equal(found["calling thread"], found["one process"])
    assert equal(found["calling thread"], found["processes"])


def test_generators_in_attributes_do_not_depend_on_workers_or_restarts() -> None:
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
        whole, state = second_epoch(kind, 0)
        assert equal(whole, expected)
        assert equal(second_epoch(kind, 13, state)[0], expected[13:])
    other, _ = second_epoch("calling thread", 0, seed=3)
    assert not equal(other, expected)
    # Seeded by chance, a generator continues as it was seeded first.
    whole, state = second_epoch("calling thread", 0, seed=None)
    assert equal(second_epoch("one process", 13, state, seed=None)[0], whole[13:])


def test_threads_and_generators_in_attributes_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with make(sequences.OwnGenerators(), "threads") as loader:
        take(loader, range(2))
    assert "numbers depend on timing" in caplog.text


def test_other_generators_than_the_saved_ones_are_refused() -> None:
    with make(sequences.OwnGenerators(), "calling thread") as loader:
        state = loader.state_dict()
    with (
        make(sequences.Plain(), "calling thread") as loader,
        pytest.raises(DataError, match="3 random generator"),
    ):
        loader.load_state(state)


@pytest.mark.parametrize("kind", ISOLATED)
def test_seed_epoch_and_index_each_make_another_item(kind: str) -> None:
    values = []
    for seed in (0, 1):
        with make(sequences.Random(), kind, seed=seed) as loader:
            for _ in range(2):
                values += [(*x, y[0]) for x, y in take(loader, [0, 1])]
                loader.end_epoch()
    assert len({value for item in values for value in item}) == 8 * 4


@pytest.mark.parametrize("kind", ISOLATED)
def test_the_programs_own_generators_are_left_alone(kind: str) -> None:
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
def test_the_users_error_arrives_with_its_traceback_in_its_turn(kind: str) -> None:
    with make(sequences.Failing(), kind) as loader:
        batches = loader.batches(range(20))
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


def test_a_killed_worker_is_named_with_its_item() -> None:
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


def test_a_worker_that_exits_is_named_with_its_code() -> None:
    with (
        make(sequences.Exiting(), "one process") as loader,
        pytest.raises(DataError, match=r"of Exiting ended at item 3: exit code 3\."),
    ):
        take(loader, [3])


def test_a_worker_killed_between_items_is_noticed() -> None:
    with make(sequences.Slow(), "one process") as loader:
        take(loader, [0])
        (worker,) = workers()
        status = Path(f"/proc/{worker}/stat")
        wait_for(lambda: ") S " in status.read_text())  # sleeping
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(DataError, match="of Slow ended at item 0: killed by SIGKILL"):
            take(loader, range(20))


def test_workers_outlive_the_process_that_forked_them() -> None:
    with make(sequences.Slow(), "processes") as loader:
        take(loader, [0])
        server, *_ = children()
        pids = workers()
        os.kill(server, signal.SIGKILL)
        assert len(take(loader, range(4))) == 4
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(DataError, match="its server process has ended, too"):
            take(loader, range(4))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_to_the_process_group_are_the_parents_affair(number: signal.Signals) -> None:
    """It still needs items to get to the batch boundary where it checkpoints."""
    with make(sequences.Slow(), "processes") as loader:
        take(loader, [0])
        for pid in children():
            os.kill(pid, number)
        assert len(take(loader, range(4))) == 4


def test_a_slow_item_is_spoken_of(
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
def test_threads_take_over_and_say_why(
    sequence: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with make(sequence, "processes") as loader, caplog.at_level(logging.WARNING):
        assert [item[0][0, 0] for item in take(loader, range(20))] == list(range(20))
        assert children() == []
    assert reason in caplog.text
    assert "Threads prepare the items" in caplog.text


def test_a_class_of_the_script_itself_is_refused_by_name(tmp_path: Path) -> None:
    script = """
        import numpy as np
        from detcore_keras.data.sequence_loader import SequenceLoader
        class Mine:
            def __getitem__(self, index): return np.array([index]), None
        loader = SequenceLoader(
            Mine(), workers=1, use_multiprocessing=True, max_queue_size=1, seed=0
        )
        print([int(x[0]) for x, _ in loader.batches(range(3))])
        loader.close()
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    result = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "[0, 1, 2]\n"
    assert "__main__.Mine is defined in the script that runs" in result.stderr


def test_a_users_module_is_found_where_the_program_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_own_module.py").write_text(
        "import numpy as np\nclass Mine:\n"
        "    def __getitem__(self, index): return np.array([index]), None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from users_own_module import Mine  # type: ignore[import-not-found]

    with make(Mine(), "processes") as loader:
        assert len(take(loader, range(3))) == 3
        assert len(workers()) == 2


# -- ends -----------------------------------------------------------------------------------------


def test_a_consumer_that_waits_for_a_stuck_item_learns_of_the_workers_death() -> None:
    with make(sequences.Given(sequences.stuck), "processes") as loader:
        batches = loader.batches(range(3))
        next(batches)
        for pid in workers():
            threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(DataError, match=r"of Given ended at item [12]: killed by SIGKILL"):
            next(batches)


@pytest.mark.parametrize("give", [sequences.stuck, sequences.stuck_deaf])
def test_close_is_quick_whatever_the_workers_do(give: Any) -> None:
    with make(sequences.Given(give, 9), "processes", max_queue_size=4) as loader:
        next(loader.batches(range(5)))
        began = time.monotonic()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("moment", ["before the first item", "between items", "inside an item"])
def test_nothing_outlives_a_parent_that_is_killed(moment: str, tmp_path: Path) -> None:
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
        batches = loader.batches(range(9))
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
    """Return the named files of shared memory that a process has mapped or opened."""
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


def test_an_error_of_the_consumer_leaves_nothing_behind() -> None:
    def consume() -> None:
        with make(sequences.Plain(), "processes") as loader:
            for _ in loader.batches(range(20)):
                raise RuntimeError("training failed")

    with pytest.raises(RuntimeError, match="training failed"):
        consume()
    # the fixture checks processes, threads and descriptors


def test_a_loader_that_was_never_used_starts_nothing() -> None:
    with make(sequences.Plain(), "processes") as loader:
        loader.end_epoch()
        assert children() == []


def test_the_loader_imports_no_framework_and_workers_use_no_gpu(tmp_path: Path) -> None:
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
        assert next(loader.batches([0]))[0] == ""
