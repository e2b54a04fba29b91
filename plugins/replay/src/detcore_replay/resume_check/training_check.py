"""Check the resume of an experiment or a script that uses detcore, by its records."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detcore.client import EmbeddedTransport
from detcore.data import DigestedRun, read_digests
from detcore.environment import read_environment
from detcore.errors import RunError
from detcore.records import list_resumes
from detcore_replay.diverge.digest_comparison import Difference, find_first_difference
from detcore_replay.resume_check.causes import find_cause, find_lines
from detcore_replay.resume_check.check_result import CheckResult, Plan, format_counts
from detcore_replay.resume_check.scratch_runs import DelayedMoment, Moment, ScratchRuns
from detcore_replay.resume_check.tensor_files import compare_files

if TYPE_CHECKING:
    from detcore.data import ResumeComparison
    from detcore.records import Database, TrialRecord


_COMMITTED = "checkpoint_committed"
_AUDIT = "audit.json"
_MAX_NAMES = 4
_MAX_ERROR_LINES = 6
# Metrics that differ between equal runs.
_DURATION = re.compile(r"(?i)time|runtime|duration|second|speed|throughput")


class _Event(NamedTuple):
    """A report in an event log, with the position of its trial."""

    trial: int
    step: int
    kind: str
    time: float


class TrainingCheck:
    """Compares the records of an experiment or a script."""

    def watch(self, first: ScratchRuns) -> None:
        """Return a function to call during the uninterrupted run: none is needed."""
        return

    def choose_moments(
        self, plan: Plan, first: ScratchRuns, second: ScratchRuns
    ) -> tuple[list[Moment], list[str]]:
        """Choose moments in the batches after checkpoints.

        These are the first checkpoint, a checkpoint in the middle, and the last checkpoint at a
        validation, which is usually the end of an epoch.
        """
        events = _read_events(first.home)
        if not events:
            raise RunError(
                "the program ended without using detcore, so its steps cannot be compared.\n"
                "For a program that writes other checkpoints, compare its final files:\n"
                "  detcore check-resume --start COMMAND --resume COMMAND --output PATH"
            )
        if plan.kill_after or not plan.num_kills:
            return [], []
        triggers = _list_triggers(events)
        if not triggers:
            return [], ["no checkpoint was saved before the end, so resumed runs start over"]
        validated = {event[:2] for event in events if event.kind == "validation"}
        at_epochs = [index for index, trigger in enumerate(triggers) if trigger[0][:2] in validated]
        last = len(triggers) - 1
        gaps = max(1, plan.num_kills - 1)
        places = {round(number * last / gaps) for number in range(plan.num_kills)}
        if len(places) > 2 and at_epochs and not places & {*at_epochs}:
            places = {*sorted(places)[:-1], at_epochs[-1]}
        note = "no validation before the end of training, so no kill was at the end of an epoch"
        return [
            DelayedMoment(
                _prepare_report(second.home, triggers[index].report), triggers[index].delay
            )
            for index in sorted(places)
        ], [note] * (not at_epochs)

    def can_resume(self, second: ScratchRuns) -> bool:
        """Whether a killed run has recorded its start. Otherwise it starts again."""
        return bool(_list_logs(second.home))

    def compare(self, first: ScratchRuns, second: ScratchRuns, failure: str) -> CheckResult:
        """Compare the records of both runs. `failure` is how the second run failed, or ""."""
        with _open_records(first.home) as one, _open_records(second.home) as other:
            result = _compare_records((one, first.folder), (other, second.folder))
        if not failure:
            return result
        reason, lines = _split_failure(failure)
        return dataclasses.replace(
            result, difference=result.difference or reason, details=(*result.details, *lines)
        )


def _prepare_report(home: Path, report: _Event) -> Callable[[], Moment]:
    """Return a function that starts to wait for a report, or for a later one of its kind."""

    def prepare() -> Moment:
        earlier = frozenset(_list_logs(home))
        return lambda _elapsed: any(
            (event.trial, event.kind) == (report.trial, report.kind) and event.step >= report.step
            for event in _read_events(home, earlier)
        )

    return prepare


def _split_failure(failure: str) -> tuple[str, list[str]]:
    """Return why a resumed run failed, and the lines to show."""
    lines = failure.splitlines()
    for index, line in enumerate(lines[:-1]):
        if "InexactResumeError" in line:  # the next line names the first part of the state
            return lines[index + 1].strip(), lines[index : index + _MAX_ERROR_LINES]
    return "the resumed run failed", lines


def _list_logs(home: Path) -> list[Path]:
    return list(home.glob("experiments/*/trials/*/events-*.jsonl"))


def _read_events(home: Path, ignored: frozenset[Path] = frozenset()) -> list[_Event]:
    """Return the reports and checkpoints in all event logs, in the order of trials."""
    paths = _list_logs(home)
    trials = sorted({path.parent for path in paths}, key=lambda path: int(path.name))
    events = []
    for path in sorted(paths, key=lambda path: trials.index(path.parent)):
        if path in ignored:
            continue
        for line in path.read_bytes().splitlines():
            try:
                record = json.loads(line)
                fields = (record["payload"]["steps_completed"], record["kind"], record["at"])
            except (ValueError, KeyError, TypeError):
                continue  # another event, or a line that is being written
            events.append(_Event(trials.index(path.parent), *fields))
    return events


class _Trigger(NamedTuple):
    """A report after a checkpoint, and the seconds from the report to a kill."""

    checkpoint: _Event
    report: _Event
    delay: float


def _list_triggers(events: Sequence[_Event]) -> list[_Trigger]:
    """Return a trigger for each checkpoint that training continues from."""
    triggers = []
    for index, event in enumerate(events):
        later = [e for e in events[index:] if e.trial == event.trial and e.step > event.step]
        if event.kind != _COMMITTED or not later:
            continue
        reports = list(itertools.takewhile(lambda entry: entry.kind != _COMMITTED, later))
        if reports:
            triggers.append(_Trigger(event, reports[len(reports) // 2], 0.0))
        else:
            triggers.append(_Trigger(event, event, (later[0].time - event.time) / 2))
    return triggers


@contextlib.contextmanager
def _open_records(home: Path) -> Iterator[Database]:
    transport = EmbeddedTransport(read_environment({"DETCORE_HOME": str(home)}))
    with contextlib.closing(transport):
        yield transport.records()


def _compare_records(one: tuple[Database, Path], other: tuple[Database, Path]) -> CheckResult:
    """Compare the trials of an uninterrupted run with those of a killed and resumed run.

    Args:
        one: Records and working directory of the uninterrupted run.
        other: Records and working directory of the other run.
    """
    pair = [
        [
            _TrialFacts.read(database, trial, folder, other[1])
            for record in database.list_experiments()
            for trial in database.list_trials(record.id)
        ]
        for database, folder in (one, other)
    ]
    if len(pair[0]) != len(pair[1]):
        return CheckResult(
            difference=f"{len(pair[1])} trials instead of {len(pair[0])}",
            details=("A start after a kill began a new run. Pass resume=True to core.init().",),
        )
    compared: list[str] = []
    notes: list[str] = []
    for number, facts in enumerate(zip(*pair, strict=True), 1):
        name = f"trial {number}: " if len(pair[0]) > 1 else ""
        compared += [f"{name}{resume}" for resume in facts[1].resumes]
        compared.append(f"{name}compared {_count_compared(*facts)}")
        difference = _find_difference(*facts)
        if difference is not None:
            return _explain(difference, other[1], name, compared)
        if facts[0].is_described or facts[0].final is None or facts[1].final is None:
            continue
        files = compare_files(facts[0].final, facts[1].final)
        if not files.num_tensors:
            notes.append("the final state was not compared: checkpoints contain no known tensors")
            continue
        compared.append(f"{name}compared {files.counts} of the final checkpoint")
        if files.differences:
            return CheckResult(
                difference=f"{name}the final checkpoint differs",
                details=files.differences[:_MAX_NAMES],
                compared=tuple(compared),
            )
    return CheckResult(compared=tuple(compared), notes=tuple(notes))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _TrialFacts:
    """The records of a trial that are compared.

    Attributes:
        digests: Digests of the steps that lead to its end.
        first_digests: Digests of the first time that each step was trained.
        audits: Digests of the state in each checkpoint.
        metrics: Metrics by kind and step, without durations.
        first_end: The last step that its first run reported.
        resumes: Comparisons of its resumed runs.
        final: Directory of its newest checkpoint, or None.
    """

    digests: DigestedRun
    first_digests: DigestedRun
    audits: DigestedRun
    metrics: Mapping[tuple[str, int], Mapping[str, Any]]
    first_end: int
    resumes: Sequence[ResumeComparison]
    final: Path | None

    @property
    def is_described(self) -> bool:
        """Whether parts of the state are known by name."""
        return bool(self.audits.states or self.digests.states)

    @classmethod
    def read(
        cls, database: Database, trial: TrialRecord, folder: Path, recorded: Path
    ) -> _TrialFacts:
        """Read the records of a trial.

        Args:
            database: The records.
            trial: The trial.
            folder: Its working directory.
            recorded: Path of its working directory while it was training.
        """
        trial_dir = Path(str(trial.trial_dir))
        nothing = DigestedRun({}, {}, {})
        records = database.list_checkpoints(trial_id=trial.id, states=["COMPLETED"])
        urls = {record.steps_completed: f"{record.storage_url}/{record.uuid}" for record in records}
        places = {
            step: Path(url.removeprefix("file://").replace(str(recorded), str(folder)))
            for step, url in urls.items()
        }
        return cls(
            digests=read_digests(trial_dir) or nothing,
            first_digests=read_digests(trial_dir, first=True) or nothing,
            audits=DigestedRun(
                {},
                {},
                {step: parts for step, path in places.items() if (parts := _read_parts(path))},
            ),
            metrics={
                (kind, row.steps_completed): row.metrics
                for kind in ("training", "validation")
                for row in database.metrics(trial.id, kind, with_batches=False)
            },
            first_end=max(
                (row.steps_completed for row in database.metrics(trial.id, "training", run_id=1)),
                default=0,
            ),
            resumes=list_resumes(database.events(trial.id, "resume_compared")),
            final=places[max(places)] if places else None,
        )


def _read_parts(folder: Path) -> dict[str, int]:
    """Return the digests of the parts of the state that a checkpoint was saved with, by name."""
    parts = {}
    for path in sorted(folder.rglob(_AUDIT)):
        place = path.parent.relative_to(folder)
        for name, part in json.loads(path.read_text(encoding="utf-8"))["parts"].items():
            parts[name if place == Path() else f"{place}/{name}"] = int(part[2], 16)
    return parts


def _find_difference(one: _TrialFacts, other: _TrialFacts) -> Difference | None:
    """Return the first difference; its kind is "unrepeatable" if it precedes the first kill."""
    early = find_first_difference(one.digests, other.first_digests, until=other.first_end)
    if early is not None:
        return dataclasses.replace(early, kind="unrepeatable")
    end = max([*one.digests.steps, *one.digests.states, *one.audits.states], default=0)
    candidates = [
        find_first_difference(one.digests, other.digests, until=end),
        find_first_difference(one.audits, other.audits, until=end),
        *(_compare_metrics(key, one, other) for key in one.metrics if key in other.metrics),
    ]
    differences = [difference for difference in candidates if difference is not None]
    if not differences:
        return None
    first = min(differences, key=lambda difference: difference.step)
    with_tensors = next((difference for difference in differences if difference.tensors), first)
    return first if first.tensors else dataclasses.replace(first, tensors=with_tensors.tensors)


def _compare_metrics(
    key: tuple[str, int], one: _TrialFacts, other: _TrialFacts
) -> Difference | None:
    values = [
        {
            name: repr(value)
            for name, value in facts.metrics[key].items()
            if not _DURATION.search(name)
        }
        for facts in (one, other)
    ]
    return None if values[0] == values[1] else Difference(step=key[1], kind="loss")


def _count_compared(one: _TrialFacts, other: _TrialFacts) -> str:
    steps = one.audits.states.keys() & other.audits.states.keys()
    counts = format_counts(
        step=len(one.digests.steps.keys() & other.digests.steps.keys()),
        report=len(one.metrics.keys() & other.metrics.keys()),
        checkpoint=len(steps),
    )
    num_parts = max((len(one.audits.states[step]) for step in steps), default=0)
    return f"{counts} with {format_counts(part=num_parts)} of the state" if num_parts else counts


def _explain(
    difference: Difference, folder: Path, name: str, compared: Sequence[str]
) -> CheckResult:
    cause = find_cause(difference.kind, difference.tensors)
    names = ", ".join(difference.tensors[:_MAX_NAMES])
    more = len(difference.tensors) - _MAX_NAMES
    details = [f"different: {names}{f', and {more} more' if more > 0 else ''}"] if names else []
    details.append(f"probable cause: {cause.text}")
    details += [f"in {line}" for line in find_lines(cause, folder)]
    details.append(f"remedy: {cause.remedy}")
    where = "before step 1" if difference.step == 0 else f"step {difference.step}"
    kind = "before the first kill" if difference.kind == "unrepeatable" else difference.kind
    first = f", {difference.tensors[0]}" if difference.tensors else ""
    return CheckResult(
        difference=f"{name}{where}, {kind}{first}", details=tuple(details), compared=tuple(compared)
    )
