"""Record-store interface used by the client. Values are JSON, so the store may be remote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Unpack


Document: TypeAlias = "dict[str, Any]"


class ExperimentQuery(TypedDict):
    """Which experiments `Transport.list_experiments` returns, and in which order.

    See the parameters of `detcore.database.Database.list_experiments`.
    """

    states: list[str] | None
    labels: list[str]
    name: str
    archived: bool | None
    newest_first: bool
    limit: int | None
    offset: int


class TrialChanges(TypedDict, total=False):
    """Changes of `Transport.update_trial`; see `detcore.database.Database.update_trial`."""

    notes: str | None
    labels: list[str] | None
    add_labels: list[str]
    remove_labels: list[str]


class Transport(Protocol):
    """Asks a store. Arguments and results are what JSON can say; times are ISO 8601 texts in UTC.

    Numbers of metrics may be NaN or infinite: a transport whose wire has no such numbers spells
    them on its own. Each method that changes something returns when the store has accepted it, and
    raises a `DetcoreError` when it has not: `NotFoundError` where there is no such record, and what
    the method of `detcore.database.Database` of the same purpose raises.

    Documents:

    - experiment: ``id, name, state, error, config, archived, progress, created_at, ended_at`` and
      ``is_alive``: whether its process is there, None where that cannot be determined;
    - trial: ``id, experiment_id, state, error, hparams, num_restarts, created_at, ended_at,
      labels, notes``;
    - report: ``trial_id, run_id, steps_completed, metrics, batch_metrics, n_records, reported_at``;
    - checkpoint: ``uuid, experiment_id, trial_id, state, steps_completed, metadata, resources,
      experiment_config, hparams, started_at, committed_at`` and ``validation``: ``metrics,
      n_records`` of the validation at its step, or None.

    A transport of the model registry has the methods of `EmbeddedTransport` about models, too. It
    may have one more method: ``records()`` returns a `detcore.database.Database`, or
    an object that answers the questions of one. Notebooks draw experiments and trials from it, and
    show their ``repr`` without it.

    Attributes:
        page_size: Maximum number of entries to request of a list at once; None: all of them. With
            `limit` None a list is complete; otherwise it begins after `offset` entries, in the
            same order each time.
    """

    page_size: int | None

    def close(self) -> None:
        """Release the held resources; the next call takes them again."""

    # -- experiments ------------------------------------------------------------------------------

    def get_experiment(self, experiment_id: int) -> Document:
        """Return an experiment."""

    def list_experiments(self, **query: Unpack[ExperimentQuery]) -> list[Document]:
        """Return experiments by id."""

    def control_experiment(self, experiment_id: int, action: str) -> None:
        """Do one of: activate, pause, cancel, kill, archive, unarchive, delete."""

    def list_trials(self, experiment_id: int, *, limit: int | None, offset: int) -> list[Document]:
        """Return the trials of an experiment by id."""

    # -- trials -----------------------------------------------------------------------------------

    def control_trial(self, trial_id: int, action: str) -> None:
        """Do one of: cancel, kill."""

    def get_trial(self, trial_id: int) -> Document:
        """Return a trial."""

    def update_trial(self, trial_id: int, **changes: Unpack[TrialChanges]) -> Document:
        """Change a trial's notes or labels, and return it; None keeps a value."""

    def list_metrics(
        self, trial_id: int, kind: str, *, limit: int | None, offset: int
    ) -> list[Document]:
        """Return the reports of a trial by steps; `kind` is "training" or "validation"."""

    def read_log(self, trial_id: int, *, position: int, limit: int | None) -> Document:
        """Return lines of a trial's log from a position on.

        Returns:
            ``lines`` (each ``at, run, rank, stream, text``), the ``position`` behind them, and
            ``is_over``: whether nothing more will come.
        """

    def download_event_files(self, trial_id: int, folder: str) -> int:
        """Bring the event files in a folder of this machine up to date, and return how many."""

    # -- checkpoints ------------------------------------------------------------------------------

    def get_checkpoint(self, uuid: str) -> Document:
        """Return a checkpoint by its UUID, or by a beginning of it that no other one has."""

    def list_checkpoints(self, trial_id: int, *, limit: int | None, offset: int) -> list[Document]:
        """Return the COMPLETED checkpoints of a trial, oldest first."""

    def latest_checkpoint(self, trial_id: int) -> Document | None:
        """Return the COMPLETED checkpoint of a trial with the most steps."""

    def top_checkpoints(
        self,
        *,
        experiment_id: int | None,
        trial_id: int | None,
        metric: str | None,
        smaller_is_better: bool | None,
        limit: int | None,
        distinct_trials: bool,
    ) -> Document:
        """Return COMPLETED checkpoints, the best first, those without the metric (or NaN) last.

        Args:
            experiment_id: Of this experiment, or
            trial_id: of this trial.
            metric: A validation metric; None: the searcher's.
            smaller_is_better: None: as the experiment's searcher is configured.
            limit: How many at most; None: all.
            distinct_trials: Whether to return only the best one of each trial.

        Returns:
            ``metric``, ``smaller_is_better``, and ``checkpoints``: documents with ``value``, a
            number or None.
        """

    def add_checkpoint_metadata(self, uuid: str, metadata: Document) -> Document:
        """Add to a checkpoint's metadata, and return the checkpoint."""

    def remove_checkpoint_metadata(self, uuid: str, keys: list[str]) -> Document:
        """Remove keys from a checkpoint's metadata, and return the checkpoint."""

    def delete_checkpoint(self, uuid: str, globs: list[str] | None) -> Document:
        """Delete a checkpoint's files, or those that match, and return the checkpoint."""

    def download_checkpoint(self, uuid: str, folder: str) -> None:
        """Put a checkpoint's files into a folder of this machine, unless they are there."""


class Connected:
    """An object that asks a store: the one it came from, or else the one `connect` finds.

    Attributes:
        master: The address of a master that it was given, or None.
    """

    def __init__(self, master: str | None, transport: Transport | None) -> None:
        self.master = master
        self._given_transport = transport

    @property
    def _transport(self) -> Transport:
        if self._given_transport is None:
            from detcore.experimental._connect import connect

            self._given_transport = connect(self.master)
        return self._given_transport

    def _repr_html_(self) -> str | None:
        """Return the object as HTML, for notebooks, or how to get it; None: by its ``repr``."""
        from detcore._distributions import (
            MissingDistributionError,
            import_distribution,
            install_command,
        )

        try:
            report = import_distribution("detcore_report", needed_by="its page")
        except MissingDistributionError:
            import html

            how = html.escape(install_command("detcore-report"))
            return f"<pre>{html.escape(repr(self))}</pre><p>Tables and curves: {how}</p>"
        shown: str | None = report.notebook_html(self)
        return shown


def all_pages(
    transport: Transport, fetch: Callable[[int | None, int], list[Document]]
) -> Iterator[Document]:
    """Yield a whole list, page by page.

    Args:
        transport: Whose pages.
        fetch: Called with limit and offset.
    """
    size = transport.page_size
    offset = 0
    while True:
        page = fetch(size, offset)
        yield from page
        if size is None or len(page) < size:
            return
        offset += len(page)
