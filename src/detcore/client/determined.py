"""`Determined`, the entry point of the client."""

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

    It reads and writes the records of this machine (``DETCORE_HOME``), or the database in
    ``DETCORE_DB``, without a server. With the address of a master, it sends requests to this server
    (``detcore serve``) and returns the same results. The first request opens the connection.

    ```python
    client = Determined()
    best = client.get_experiment(3).top_checkpoint()
    model = best.load()
    ```

    Objects are snapshots. Only their methods change their attributes, after the store has accepted
    the change. Methods may be called from several threads.
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
            master: Address of a server: ``"http://host:8080"``, ``"host:8080"`` or ``"host"``.
                Default: ``DETCORE_MASTER``, ``DET_MASTER`` or ``DET_MASTER_ADDR`` (with
                ``DET_MASTER_PORT``). Without these, the records of this machine are used.
            user: User name on the server; default: ``DETCORE_USER``, or the user who logged in
                with ``detcore user login``. Ignored for the records of this machine.
            password: The user's password; default: ``DETCORE_TOKEN``, the token that ``detcore user
                login`` stored, or ``DETCORE_PASSWORD``.
            certificate: File (PEM) of authorities that the server's certificate is checked against;
                default: ``DETCORE_MASTER_CERT``, or the system's authorities.
            transport: The store to use, regardless of the other arguments.

        Raises:
            ConfigError: If the address is invalid, or the file `certificate` does not exist.
        """
        self._master = master
        trusted = None if certificate is None else Path(certificate)
        self._transport = (
            connect(master, user, password, certificate=trusted) if transport is None else transport
        )

    def close(self) -> None:
        """Close the database or the connections. Objects of this client reopen them on use."""
        self._transport.close()

    def __enter__(self) -> Determined:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def get_experiment(self, experiment_id: int) -> ExperimentReference:
        """Return the experiment with an id.

        Raises:
            NotFoundError: If no experiment has this id; the message lists the valid ids.
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
            states: Return only experiments in one of these states, such as ``"RUNNING"``; None =
                all.
            labels: Return only experiments with all these labels.
            name: Return only experiments whose name contains this string, ignoring case.
            archived: True for archived experiments, False for the others; None = all.
            newest_first: Whether to sort from the newest to the oldest.
            limit: Maximum number of results; None = all.

        Raises:
            InvalidArgumentError: If a state is unknown, or the limit is less than 1.
        """
        state_list = None if states is None else [check_state(state) for state in states]
        if state_list == []:
            return []
        if limit is not None:
            check_count("limit", limit)
        documents = self._transport.list_experiments(
            states=state_list,
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
            NotFoundError: If no trial has this id; the message lists the valid ids.
        """
        self._transport.get_trial(check_id("trial_id", trial_id))
        return TrialReference(trial_id, self._master, transport=self._transport)

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        """Return a checkpoint in any state.

        Args:
            uuid: UUID, or a prefix that no other checkpoint has.

        Raises:
            NotFoundError: If no checkpoint matches, or several do.
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
            name: Unique name.
            description: A short description.
            metadata: Custom metadata; JSON values.
            labels: Labels for searching.

        Raises:
            DatabaseError: If another model has this name.
            InvalidArgumentError: If an argument has the wrong type.
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
            name: Name or id of the model.

        Raises:
            NotFoundError: If the model does not exist; the message lists the models.
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
        """Return the models of the registry.

        Args:
            sort_by: Sort key; case is ignored.
            order_by: Sort direction.
            name: Return only models whose name contains this string, ignoring case.
            description: Return only models whose description contains this string, ignoring case.
            labels: Return only models with all these labels.
            archived: True for archived models, False for the others; None = all.
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
        """Return the labels of all models, the most frequent first."""
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
