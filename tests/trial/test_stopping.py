"""What is saved before a kill: decided well, and never torn."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from virtual_time import Killed, KilledDatabase, TimedStorage, VirtualTime

from detcore.checkpoint import (
    CheckpointContext,
    list_committed,
    recover_checkpoints,
    verify_checkpoint,
)
from detcore.core._preempt import Grace
from detcore.database import Database
from detcore.distributed import DistributedContext
from detcore.errors import CheckpointTimeoutError
from detcore.storage import LocalStorage, StorageBackend
from detcore.trial._stopping import Choice, LastSave, expected_save_s, plan_stop
from detcore.types import SaveProgress, SaveTimes
from detcore_storage import FsspecStorage


def took(*seconds: float, size: int = 1000) -> list[SaveTimes]:
    return [SaveTimes(size_bytes=size, stalled_s=0.1, total_s=each) for each in seconds]


def under_way(age_s: float, *, upload_s: float = 0.0, part: float | None = None) -> SaveProgress:
    return SaveProgress(uuid="u", steps_completed=90, age_s=age_s, upload_s=upload_s, fraction=part)


@pytest.mark.parametrize(
    ("left_s", "saves", "outstanding", "choice", "gives_up"),
    [
        # Nothing seen yet: tried in any case.
        (5.0, [], None, Choice.FULL, False),
        (1.0, [], None, Choice.NONE, False),
        # It fits, it does not but may be faster this time, and no hope at all.
        (20.0, took(10.0), None, Choice.FULL, False),
        (5.0, took(10.0), None, Choice.FULL, False),
        (1.2, took(10.0), None, Choice.NONE, False),
        # Both fit; only the new one; only the one under way.
        (30.0, took(10.0), under_way(4.0), Choice.FULL, False),
        (14.0, took(10.0), under_way(4.0), Choice.FULL, True),
        (9.0, took(10.0), under_way(4.0), Choice.FINISH, False),
        # What has arrived tells that the storage is slower now, or faster.
        (30.0, took(10.0), under_way(10.0, upload_s=10.0, part=0.2), Choice.FINISH, False),
        (9.0, took(10.0), under_way(2.0, upload_s=2.0, part=0.5), Choice.FULL, False),
        (5.0, [], under_way(2.0), Choice.FULL, False),
    ],
)
def test_decisions(
    left_s: float,
    saves: list[SaveTimes],
    outstanding: SaveProgress | None,
    choice: Choice,
    gives_up: bool,
) -> None:
    plan = plan_stop(left_s=left_s, margin_s=1.0, saves=saves, under_way=outstanding)
    assert (plan.choice, plan.gives_up) == (choice, gives_up), plan.reason
    assert f"{left_s:.1f} s are left until the kill (1.0 s kept for ending)" in plan.reason


def test_saves_of_another_size_count_by_their_speed() -> None:
    saves = [*took(1.0, size=100), *took(4.0, 4.0, size=200)]
    assert expected_save_s(saves) == (4.0, 2.0)
    assert expected_save_s([]) is None


@dataclasses.dataclass
class Scenario:
    """One machine that goes away.

    Attributes:
        grace_s: From the signal to the kill, 5 to 60 s.
        save_s: What a save takes at the speed of the first ones.
        speed: How much faster (slower if below 1) the storage is later on.
        changes_at_signal: Whether that begins at the signal; else long before it.
        signal_after_s: When the signal comes.
        is_direct: Whether the storage is a folder of this machine.
        truth: Part of the promised grace that there really is.
    """

    grace_s: float
    save_s: float
    speed: float
    changes_at_signal: bool
    signal_after_s: float
    step_s: float
    period: int
    is_direct: bool
    truth: float

    @classmethod
    def draw(cls, seed: int) -> Scenario:
        dice = random.Random(seed)
        speed = dice.uniform(1.0, 10.0)
        return cls(
            grace_s=dice.uniform(5.0, 60.0),
            save_s=dice.choice([dice.uniform(0.5, 10.0), dice.uniform(5.0, 60.0)]),
            speed=dice.choice([speed, 1.0 / speed, 1.0]),
            changes_at_signal=dice.random() < 0.5,
            signal_after_s=dice.uniform(0.0, 200.0),
            step_s=dice.uniform(0.05, 1.0),
            period=dice.randrange(5, 60),
            is_direct=dice.random() < 0.5,
            truth=dice.choice([1.0, 1.0, 1.0, dice.random()]),
        )


SIZE = 4096
SNAPSHOT_S = 0.2


class Machine:
    """A process that trains and saves on virtual time, until it is killed or ends."""

    def __init__(self, scenario: Scenario, storage: StorageBackend, database: Database) -> None:
        self.scenario = scenario
        self.time = VirtualTime()
        # Of a save in place a half is for writing, and a half for reading it again.
        self.passes = 2 if scenario.is_direct else 1
        self.first_speed = self.passes * SIZE / scenario.save_s
        self.storage = TimedStorage(storage, self.time, self.first_speed)
        experiment = database.create_experiment(
            config={}, config_text=None, model_dir="/", name="x"
        )
        self.trial = database.create_trial(experiment_id=experiment, hparams={}, seed=0)
        self.context = CheckpointContext(
            storage=self.storage,
            distributed=DistributedContext(),
            database=KilledDatabase(database, self.time),
            trial_id=self.trial,
            behind=self.time,
        )
        self.steps = 0
        self.steps_saved_before: int | None = None
        self.decisions: list[str] = []

    def save(self) -> None:
        """As a trial does: copy, then write behind."""

        def snapshot(path: Path) -> Callable[[], None]:
            self.time.sleep(SNAPSHOT_S)
            content = f"{self.steps:<{SIZE // 2}}".encode()

            def write() -> None:
                for name in ("a", "b"):
                    if self.scenario.is_direct:
                        self.time.sleep(len(content) / self.storage.bytes_per_s)
                    (path / name).write_bytes(content)

            return write

        self.context.save_async(snapshot, {"steps_completed": self.steps})

    def live(self) -> bool:
        """Train, be told, and end; return whether it ended before it was killed."""
        try:
            self._train()
            self._end()
        except Killed:
            return False
        finally:
            self.time.end()
        return True

    def _train(self) -> None:
        scenario, time = self.scenario, self.time
        while time.now() < scenario.signal_after_s:
            if not scenario.changes_at_signal and time.now() > scenario.signal_after_s / 2:
                self._change()
            time.sleep(scenario.step_s)
            self.steps += 1
            self.context.poll()
            if self.steps % scenario.period == 0:
                self.save()
        if scenario.changes_at_signal:
            self._change()

    def _change(self) -> None:
        self.storage.bytes_per_s = self.first_speed * self.scenario.speed

    def _end(self) -> None:
        # From the boundary on, where a signal is seen: what comes before is the step's time.
        time, grace = self.time, Grace(self.scenario.grace_s, "simulation")
        promised = time.now() + grace.seconds
        time.kill_at = time.now() + grace.seconds * self.scenario.truth
        under_way = self.context.progress()
        self.steps_saved_before = None if under_way is None else under_way.steps_completed
        last = LastSave(
            self.context,
            left_s=lambda: promised - time.now(),
            margin_s=grace.margin_s,
            say=self.decisions.append,
        )
        if self.steps_saved_before != self.steps and last.is_worth_it():
            self.save()
        try:
            self.context.wait(max(0.0, promised - grace.margin_s - time.now()))
        except CheckpointTimeoutError:
            self.context.give_up(0.0)

    def full_save_s(self) -> float:
        """What a save alone takes at the present speed, told by nothing that detcore measures."""
        requests = 8 * self.storage.latency_s
        files_s = self.passes * (SIZE + 200) / self.storage.bytes_per_s
        return SNAPSHOT_S + files_s + requests


def restore(machine: Machine, storage: StorageBackend, database: Database) -> int:
    """Settle and look, as the trial's next start does; return the steps of the newest."""
    recover_checkpoints(database, storage, machine.trial)
    records = database.list_checkpoints(trial_id=machine.trial)
    states = {record.uuid: record.state for record in records}
    committed = [each for each in list_committed(storage) if each in states]
    assert {name for name, state in states.items() if state == "COMPLETED"} == set(committed)
    assert set(states.values()) <= {"COMPLETED", "DELETED"}
    there = {entry.key.partition("/")[0] for entry in storage.list()}
    assert there & set(states) == set(committed), "traces of what was never committed"
    for name in committed:
        assert verify_checkpoint(storage, name) == [], "a torn commit"
        steps = [record.steps_completed for record in records if record.uuid == name]
        for file in ("a", "b"):
            assert int(storage.read(f"{name}/{file}")) == steps[0]
    latest = database.latest_checkpoint(machine.trial)
    return 0 if latest is None else latest.steps_completed


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'records.db'}") as opened:
        yield opened


KILLS = 300
GROUPS = 6


@pytest.mark.soak
@pytest.mark.parametrize("group", range(GROUPS))
def test_kills(group: int, database: Database, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(group, KILLS, GROUPS):
        scenario = Scenario.draw(seed)
        storage: StorageBackend = (
            LocalStorage(tmp_path / "kept")
            if scenario.is_direct
            else FsspecStorage(f"memory://{uuid.uuid4().hex}/c")
        )
        machine = Machine(scenario, storage, database)
        ended = machine.live()
        full_s = machine.full_save_s()
        restored = restore(machine, storage, database)
        lost = machine.steps - restored
        usable_s = scenario.grace_s - Grace(scenario.grace_s, "").margin_s
        told = f"seed {seed}: {scenario}, lost {lost}, {machine.decisions}"
        counts["kills"] += 1
        counts["ended by itself"] += ended
        counts["a save was under way"] += machine.steps_saved_before is not None
        counts["it was given up"] += any("given up, and" in each for each in machine.decisions)
        counts["nothing lost"] += lost == 0
        if scenario.truth < 1.0:
            counts["killed before the time"] += 1
            continue
        if could_have_fitted(machine, full_s, usable_s):
            counts["a save could have fitted"] += 1
            assert lost <= 1, told
        assert ended, f"not ended before the kill: {told}"
    print(dict(counts))
    assert counts["kills"] == KILLS // GROUPS
    assert counts["a save could have fitted"] > 10
    assert counts["nothing lost"] < counts["kills"], "no kill was hard enough to prove anything"


def could_have_fitted(machine: Machine, full_s: float, usable_s: float) -> bool:
    """Whether there was time for a save, whatever the saves before made believe."""
    if machine.steps_saved_before is None:
        return full_s <= usable_s
    # The one under way has at most a whole save to go.
    if 2 * full_s <= usable_s:
        return True
    # Where the speed is as it was, it is known that the present state alone fits.
    return machine.scenario.speed == 1.0 and 1.3 * full_s <= usable_s


def test_the_simulation_finds_a_decision_that_loses_steps(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop that only ever finishes what is under way is noticed."""
    monkeypatch.setattr(LastSave, "is_worth_it", lambda self: False)
    with pytest.raises(AssertionError, match="lost"):
        test_kills(0, database, tmp_path)
