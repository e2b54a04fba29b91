"""The way in: `Determined`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.client.arguments import (
    check_count,
    check_id,
    check_keys,
    check_metadata,
    check_state,
    check_text,
)
from detcore.client.client_checkpoint import Checkpoint
from detcore.client.experiment_reference import ExperimentReference
from detcore.client.metric_reports import TrainingMetrics, ValidationMetrics
from detcore.client.registered_model import Model
from detcore.client.transport import connect
from detcore.client.trial_reference import TrialReference
from detcore.contract.values import ExperimentState, ModelOrderBy, ModelSortBy

if TYPE_CHECKING:
    from detcore.client.documents import Document
    from detcore.client.transport import Transport


class Determined:
    """Gives access to experiments, trials, checkpoints and models.

    It reads and writes the records of this machine (``DETCORE_HOME``), or the database that
    ``DETCORE_DB`` names; no server has to run. With the address of a master it asks that server
    (``detcore serve``) instead, with the same results. Nothing is opened before the first question.

    ```python
    client = Determined()
    best = client.get_experiment(3).top_checkpoint()
    model = best.load()
    ```

    Objects are snapshots: their attributes change when their own methods change them, and only
    after the store has accepted the change. Methods may be called from several threads.
    """

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        *,
        certificate: str | os.PathLike[str] | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Choose the record store.

        Args:
            master: Address of a server, such as ``"http://host:8080"``; ``"host"`` and
                ``"host:8080"`` mean that, too. Default: ``DETCORE_MASTER``, ``DET_MASTER``,
                ``DET_MASTER_ADDR`` (with ``DET_MASTER_PORT``), and without these the records of
                this machine.
            user: User name on the server; default: ``DETCORE_USER``, or the user that logged in
                there with ``detcore user login``. Ignored for the records of this machine.
            password: The user's password; default: ``DETCORE_TOKEN``, the token that ``detcore user
                login`` kept, or ``DETCORE_PASSWORD``.
            certificate: File of the authorities (PEM) that the server's certificate is checked
                against; default: ``DETCORE_MASTER_CERT``, or the system's.
            transport: The store to use, whatever the other arguments say.

        Raises:
            ConfigError: If the address cannot be used, or there is no file `certificate`.
        """
        self._master = master
        trusted = None if certificate is None else Path(certificate)
        self._transport = (
            connect(master, user, password, certificate=trusted) if transport is None else transport
        )

    def close(self) -> None:
        """Close the database, or the connections. Objects from here open it again if needed."""
        self._transport.close()

    def __enter__(self) -> Determined:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def get_experiment(self, experiment_id: int) -> ExperimentReference:
        """Return the experiment with an id.

        Raises:
            NotFoundError: If there is no such experiment; the message lists the known ones.
        """
        self._transport.get_experiment(check_id("experiment_id", experiment_id))
        return ExperimentReference(experiment_id, self._master, transport=self._transport)

    def get_experiments(
        self,
        states: Iterable[ExperimentState | str] | None = None,
        labels: Iterable[str] = (),
        name: str = "",
        archived: bool | None = False,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[ExperimentReference]:
        """Return experiments, by id.

        Args:
            states: Only those in one of these states, such as ``"RUNNING"``; None = all.
            labels: Only those that have all of these.
            name: Only those with this in their name, in capitals or not.
            archived: Only those that are archived, or that are not; None = all.
            newest_first: Whether the newest is the first one, instead of the oldest.
            limit: Maximum number of results; None = all.

        Raises:
            InvalidArgumentError: If there is no such state, or the limit is less than 1.
        """
        wanted = None if states is None else [check_state(state) for state in states]
        if wanted == []:
            return []
        if limit is not None:
            check_count("limit", limit)
        documents = self._transport.list_experiments(
            states=wanted,
            labels=check_keys("labels", labels),
            name=name,
            archived=archived,
            newest_first=newest_first,
            limit=limit,
        )
        return [
            ExperimentReference(document["id"], self._master, transport=self._transport)
            for document in documents
        ]

    def get_trial(self, trial_id: int) -> TrialReference:
        """Return the trial with an id.

        Raises:
            NotFoundError: If there is no such trial; the message lists the known ones.
        """
        self._transport.get_trial(check_id("trial_id", trial_id))
        return TrialReference(trial_id, self._master, transport=self._transport)

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        """Return a checkpoint, whatever its state.

        Args:
            uuid: Its UUID, or a beginning of it that no other checkpoint has.

        Raises:
            NotFoundError: If none or several match.
        """
        document = self._transport.get_checkpoint(check_text("uuid", uuid))
        return Checkpoint.from_document(document, self._transport, master=self._master)

    def create_model(
        self,
        name: str,
        description: str | None = "",
        metadata: Mapping[str, Any] | None = None,
        labels: Iterable[str] | None = None,
    ) -> Model:
        """Add a model to the registry.

        Args:
            name: Unique.
            description: A short description.
            metadata: The user's own; JSON values.
            labels: Words to find it by.

        Raises:
            DatabaseError: If there is a model of that name.
            InvalidArgumentError: If an argument is of the wrong kind.
        """
        document = self._transport.create_model(
            check_text("name", name),
            description or "",
            check_metadata(metadata or {}),
            check_keys("labels", labels or ()),
        )
        return self._model(document)

    def get_model(self, name: str | int) -> Model:
        """Return a model of the registry.

        Args:
            name: Its name, or its id.

        Raises:
            NotFoundError: If there is no such model; the message lists the known ones.
        """
        model = name if isinstance(name, int) else check_text("name", name)
        return self._model(self._transport.get_model(model))

    def get_models(
        self,
        sort_by: ModelSortBy = ModelSortBy.NAME,
        order_by: ModelOrderBy = ModelOrderBy.ASCENDING,
        name: str = "",
        description: str = "",
        labels: Iterable[str] | None = None,
        archived: bool | None = None,
    ) -> list[Model]:
        """Return the models of the registry, all of them.

        Args:
            sort_by: The sort key; case is ignored.
            order_by: In which direction.
            name: Only those with this in their name, in capitals or not.
            description: Only those with this in their description, in capitals or not.
            labels: Only those that have all of these.
            archived: Only those that are archived, or that are not; None = all.
        """
        documents = self._transport.list_models(
            sort_by=ModelSortBy(sort_by).value,
            order_by=ModelOrderBy(order_by).value,
            name=name,
            description=description,
            labels=check_keys("labels", labels or ()),
            archived=archived,
        )
        return [self._model(document) for document in documents]

    def get_model_labels(self) -> list[str]:
        """Return the labels that models have, the most frequent first."""
        counts = Counter(label for model in self.get_models() for label in model.labels)
        return sorted(counts, key=lambda label: (-counts[label], label))

    def _model(self, document: Document) -> Model:
        return Model.from_document(document, self._transport, master=self._master)

    def stream_trials_training_metrics(self, trial_ids: Iterable[int]) -> Iterator[TrainingMetrics]:
        """Yield the training reports of trials, trial by trial, in the order of steps."""
        for trial_id in list(trial_ids):
            yield from self.get_trial(trial_id).stream_training_metrics()

    def stream_trials_validation_metrics(
        self, trial_ids: Iterable[int]
    ) -> Iterator[ValidationMetrics]:
        """Yield the validation reports of trials, trial by trial, in the order of steps."""
        for trial_id in list(trial_ids):
            yield from self.get_trial(trial_id).stream_validation_metrics()
