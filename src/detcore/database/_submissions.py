"""Experiments submitted to a server: the user of each, and the work left for the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, select, update
from sqlalchemy.exc import IntegrityError

from detcore._log import decode_document
from detcore._records import ProcessIdentity, SubmissionRecord, read_row
from detcore.database._experiments import insert_experiment
from detcore.database._process import identify_this_process, is_alive
from detcore.database._queries import Queries, among, now, process_document, this_process
from detcore.database._schema import experiments, submissions, users
from detcore.database._secrets import hide_secrets
from detcore.types import ExperimentState

__all__ = ["SubmissionQueries"]

_QUEUED = "QUEUED"
_ENDED = "ENDED"
_GOES_ON = (ExperimentState.PAUSED, ExperimentState.ERROR, ExperimentState.CANCELED)


class SubmissionQueries(Queries):
    """Methods of `Database` about submitted experiments."""

    def submit_experiment(
        self,
        *,
        user_id: int,
        submission_id: str,
        test_mode: bool,
        config: Mapping[str, object],
        config_text: str,
        place: Callable[[int], str],
    ) -> tuple[int, bool]:
        """Record an experiment that waits for its turn, unless it was submitted before.

        Args:
            user_id: Whose it is.
            submission_id: The user's identifier of it; up to 64 characters.
            test_mode: Whether it is a smoke run.
            config: The configuration, defaults applied; JSON values.
            config_text: The experiment file as it was written.
            place: Called with the new id, before other processes see the record: puts the code in
                its place, and returns the folder. If it raises, nothing is recorded.

        Returns:
            The id, and whether it is new.
        """
        hidden, text = hide_secrets(config, config_text)
        try:
            with self._write() as connection:
                known = _find(connection, user_id, submission_id)
                if known is not None:
                    return known, False
                experiment_id = insert_experiment(
                    connection,
                    config=hidden,
                    config_text=text,
                    model_dir="",
                    name=str(hidden.get("name", "")),
                )
                connection.execute(
                    submissions.insert().values(
                        experiment_id=experiment_id,
                        user_id=user_id,
                        submission_id=submission_id,
                        phase=_QUEUED,
                        test_mode=test_mode,
                        created_at=now(),
                    )
                )
                connection.execute(
                    update(experiments)
                    .where(experiments.c.id == experiment_id)
                    .values(model_dir=place(experiment_id))
                )
                return experiment_id, True
        except IntegrityError:
            # On a server of databases two tries of one hand-in may be under way at once.
            known = self.find_submission(user_id, submission_id)
            if known is None:
                raise
            return known, False

    def find_submission(self, user_id: int, submission_id: str) -> int | None:
        """Return the id of the experiment that a user submitted under an identifier, or None."""
        with self._read() as connection:
            return _find(connection, user_id, submission_id)

    def get_submission(self, experiment_id: int) -> SubmissionRecord | None:
        """Return the submission of an experiment; None if it was not submitted."""
        with self._read() as connection:
            row = connection.execute(
                _RECORDS.where(submissions.c.experiment_id == experiment_id)
            ).fetchone()
        return None if row is None else read_row(SubmissionRecord, row)

    def submitters(self, experiment_ids: Sequence[int]) -> dict[int, str]:
        """Return the names of the users who submitted some experiments, by the experiments' ids."""
        query = select(submissions.c.experiment_id, users.c.name).join(users)
        with self._read() as connection:
            return {
                row.experiment_id: row.name
                for which in among(submissions.c.experiment_id, experiment_ids)
                for row in connection.execute(query.where(which))
            }

    def list_submissions(self, *, phases: Iterable[str]) -> list[SubmissionRecord]:
        """Return the submissions in one of some phases, by the experiments' ids."""
        query = _RECORDS.where(submissions.c.phase.in_(list(phases)))
        with self._read() as connection:
            rows = connection.execute(query.order_by(submissions.c.experiment_id))
            return [read_row(SubmissionRecord, row) for row in rows]

    def set_submission_phase(self, experiment_id: int, phase: str) -> None:
        """Record the phase of a submitted experiment.

        ENDED is recorded only if it does not run: it may have been resumed.
        """
        which = [submissions.c.experiment_id == experiment_id]
        if phase == _ENDED:
            running = select(experiments.c.id).where(
                experiments.c.id == experiment_id,
                experiments.c.state == ExperimentState.RUNNING.value,
            )
            which.append(submissions.c.experiment_id.not_in(running))
        with self._write() as connection:
            connection.execute(update(submissions).where(*which).values(phase=phase))

    def queue_again(self, experiment_id: int) -> bool:
        """Let a submitted experiment that does not run wait for its turn once more.

        Returns:
            False if it runs, waits or is complete, or was not submitted.
        """
        with self._write() as connection:
            handed_in = select(submissions.c.experiment_id)
            changed = connection.execute(
                update(experiments)
                .where(
                    experiments.c.id == experiment_id,
                    experiments.c.id.in_(handed_in),
                    experiments.c.state.in_([state.value for state in _GOES_ON]),
                )
                .values(
                    state=ExperimentState.RUNNING.value,
                    process=this_process(),
                    control=None,
                    error=None,
                    ended_at=None,
                )
            )
            if changed.rowcount:
                connection.execute(
                    update(submissions)
                    .where(submissions.c.experiment_id == experiment_id)
                    .values(phase=_QUEUED)
                )
            return bool(changed.rowcount)

    def adopt_experiment(self, experiment_id: int) -> bool:
        """Look after a RUNNING experiment from now on, if the process that did so is gone.

        Of several processes that try at once one does.

        Returns:
            Whether it is this one's now, or was so before.
        """
        mine = this_process()
        with self._read() as connection:
            known = connection.execute(
                select(experiments.c.process).where(
                    experiments.c.id == experiment_id,
                    experiments.c.state == ExperimentState.RUNNING.value,
                )
            ).scalar()
        if known is None or known == mine:
            return known == mine
        if is_alive(ProcessIdentity.from_document(decode_document(known))) is not False:
            return False
        with self._write() as connection:
            changed = connection.execute(
                update(experiments)
                .where(
                    experiments.c.id == experiment_id,
                    experiments.c.state == ExperimentState.RUNNING.value,
                    experiments.c.process == known,
                )
                .values(process=mine)
            )
            return bool(changed.rowcount)

    def disown_experiment(self, experiment_id: int, process: ProcessIdentity) -> None:
        """Give an adopted experiment back that could not be looked after: another one may try.

        Args:
            experiment_id: Which.
            process: The one it was adopted from, which is gone.
        """
        with self._write() as connection:
            connection.execute(
                update(experiments)
                .where(
                    experiments.c.id == experiment_id,
                    experiments.c.state == ExperimentState.RUNNING.value,
                    experiments.c.process == this_process(),
                )
                .values(process=process_document(process))
            )

    def is_this_process(self, process: ProcessIdentity) -> bool:
        """Whether a record is of the calling process."""
        return process == identify_this_process()

    def process_is_alive(self, process: ProcessIdentity) -> bool | None:
        """Return whether the process of a record is there; None if that cannot be determined."""
        return is_alive(process)


_RECORDS: Select[Any] = (
    select(
        submissions,
        users.c.name.label("user_name"),
        experiments.c.state,
        experiments.c.process,
        experiments.c.control,
    )
    .join(users, users.c.id == submissions.c.user_id)
    .join(experiments, experiments.c.id == submissions.c.experiment_id)
)


def _find(connection: Connection, user_id: int, submission_id: str) -> int | None:
    found = connection.execute(
        select(submissions.c.experiment_id).where(
            submissions.c.user_id == user_id, submissions.c.submission_id == submission_id
        )
    ).scalar()
    return None if found is None else int(found)
