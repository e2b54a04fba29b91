"""Operations that a search method requests of a trial."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from detcore.contract.errors import ConfigError, ContextStateError, MetricError
from detcore.contract.values import Length, Unit
from detcore.core.context_options import ScriptExperiment, SearcherMode
from detcore.core.metric_values import clean_metric

if TYPE_CHECKING:
    from detcore.contract.values import TrialInfo
    from detcore.core.channel import Channel
    from detcore.distributed import DistributedContext


class SearcherOperation:
    """Train up to a length, validate there, and report the searcher's metric.

    Attributes:
        length: Total amount of training, counted from the start of the trial.
        unit: Unit of `length`; None if the configuration gives a bare number.
        is_completed: Whether the metric was reported.
    """

    def __init__(
        self, length: int, unit: Unit | None, *, distributed: DistributedContext, channel: Channel
    ) -> None:
        self.length = length
        self.unit = unit
        self.is_completed = False
        self._distributed = distributed
        self._channel = channel

    def report_progress(self, length: float) -> None:
        """Report the progress of training, for displays.

        Args:
            length: The amount trained since the start of the trial; >= 0.

        Raises:
            ContextStateError: On a worker that is not the chief, or after the operation was
                completed, unless `length` equals the operation's length.
        """
        self._require_chief("report_progress")
        if not math.isfinite(length) or length < 0:
            raise MetricError(f"progress of {length!r}: expected a finite number, 0 or more")
        if self.is_completed and length != self.length:
            raise ContextStateError(
                f"progress {length} was reported after the operation of length {self.length} was "
                "completed.\nReport progress before report_completed()."
            )
        unit = None if self.unit is None else self.unit.value
        self._channel.send("progress", progress=length, length=self.length, unit=unit)

    def report_completed(self, searcher_metric: float) -> None:
        """Report the searcher's metric at the operation's length.

        Args:
            searcher_metric: The metric that the searcher compares; not NaN.

        Raises:
            ContextStateError: On a worker that is not the chief, or if the operation was completed
                before.
            MetricError: If the metric is not a number, or NaN.
        """
        self._require_chief("report_completed")
        if self.is_completed:
            raise ContextStateError(
                f"the operation of length {self.length} was completed twice.\n"
                "Call report_completed() once per operation."
            )
        value = clean_metric("searcher_metric", searcher_metric)
        if math.isnan(value):
            raise MetricError(
                "the searcher's metric is NaN.\n"
                "NaN cannot be compared, so the search cannot continue.\n"
                "Look for NaN in the data, or train with a lower learning rate."
            )
        self.is_completed = True
        self._channel.send("searcher_completed", length=self.length, metric=value)

    def _require_chief(self, name: str) -> None:
        if self._distributed.rank != 0:
            raise ContextStateError(
                f"{name}() was called on rank {self._distributed.rank}.\n"
                "Only rank 0 reports for the trial: call it there only."
            )


class SearcherContext:
    """Iterates over the operations that the search method requests of this trial.

    ```python
    for operation in context.searcher.operations():
        metric = train_until(operation.length)
        operation.report_completed(metric)
    ```
    """

    def __init__(
        self,
        info: TrialInfo | None,
        *,
        distributed: DistributedContext,
        channel: Channel,
    ) -> None:
        """Create the context of a trial.

        Args:
            info: Identity and settings of the trial.
            distributed: This worker's rank and its peers.
            channel: Control channel to the runner. Without a runner, the only operation is the
                configured length.
        """
        self._distributed = distributed
        self._channel = channel
        self._asks_runner = channel.has_runner
        self._length: int | None = None
        self._unit: Unit | None = None
        if info is not None:
            length, self._unit = info.settings.max_length, info.settings.length_unit
            self._length = info.searcher_length or (length.count if length else None)
        self._is_acknowledged = False
        self._is_over = False

    def operations(
        self,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,
        auto_ack: bool = True,
    ) -> Iterator[SearcherOperation]:
        """Iterate over the operations, until the search method has no more for this trial.

        After each completed operation, the loop waits until the search method has decided whether
        to train further. A standalone script has one operation, whose length is the `max_length`
        passed to `init`.

        Args:
            searcher_mode: The workers that iterate.
            auto_ack: Whether to acknowledge the end of the operations. With False, call
                `acknowledge_out_of_ops` yourself.

        Raises:
            ContextStateError: In ChiefOnly mode on a worker that is not the chief, if the next
                operation is requested before the previous operation was completed, and in a
                standalone script that passed no `max_length`.
        """
        if searcher_mode is SearcherMode.ChiefOnly and self._distributed.rank != 0:
            raise ContextStateError(
                f"operations() was called on rank {self._distributed.rank} in ChiefOnly mode.\n"
                "Call it on rank 0 only, or pass SearcherMode.WorkersAskChief."
            )
        if self._length is None:
            raise ContextStateError(
                "operations() was called, but the training length is unknown: the script has no "
                "experiment file and called core.init() without max_length.\n"
                'Pass the length in batches, records or epochs: core.init(max_length={"batches": '
                "1000})"
            )
        return self._iterate_operations(auto_ack, searcher_mode)

    def _iterate_operations(
        self, auto_ack: bool, mode: SearcherMode
    ) -> Iterator[SearcherOperation]:
        length = None if self._is_over else self._length
        while length is not None:
            operation = SearcherOperation(
                length, self._unit, distributed=self._distributed, channel=self._channel
            )
            yield operation
            is_completed, following = self._next_length(operation, mode)
            if not is_completed:
                raise ContextStateError(
                    "the next operation was requested, but the operation of length "
                    f"{operation.length} was not completed.\n"
                    "The search method needs its metric to decide how far to train next.\n"
                    "Call operation.report_completed(metric) on rank 0 first, or leave the loop "
                    "with break."
                )
            operation.is_completed = True
            length = following
            if length is not None:
                self._length = length
        if auto_ack:
            self.acknowledge_out_of_ops()

    def _next_length(
        self, operation: SearcherOperation, mode: SearcherMode
    ) -> tuple[bool, int | None]:
        """Return whether an operation was completed, and the next length, or None."""
        answer: tuple[bool, int | None] = (operation.is_completed, None)
        if operation.is_completed and self._asks_runner:
            answer = (True, self._channel.wait_for_length())
            self._is_over = answer[1] is None
        if mode is SearcherMode.WorkersAskChief:
            answer = self._distributed.broadcast(answer)
        return answer

    def acknowledge_out_of_ops(self) -> None:
        """Acknowledge the end of the operations: the trial is about to end."""
        self._is_acknowledged = True

    def get_configured_units(self) -> Unit | None:
        """Return the unit of `SearcherOperation.length`; None for a bare number."""
        return self._unit


def set_length(
    script: ScriptExperiment, max_length: int | Mapping[str, int] | Length | None
) -> ScriptExperiment:
    """Return a script's experiment with the length passed to `init`; None changes nothing.

    Raises:
        ConfigError: If `max_length` is not a length.
    """
    if max_length is None:
        return script
    length_spec = (
        {max_length.unit.value: max_length.count} if isinstance(max_length, Length) else max_length
    )
    counts = list(length_spec.values()) if isinstance(length_spec, Mapping) else [length_spec]
    units = list(length_spec) if isinstance(length_spec, Mapping) else []
    is_count = len(counts) == 1 and type(counts[0]) is int and counts[0] >= 1
    if not is_count or any(unit not in {unit_type.value for unit_type in Unit} for unit in units):
        raise ConfigError(
            f"max_length is {max_length!r}; expected one of {{'batches': N}}, {{'records': N}}, "
            "{'epochs': N}, or N alone, with N a whole number, 1 or more"
        )
    length = {units[0] if units else Unit.BATCHES.value: counts[0]}
    searcher = {**(script.config.get("searcher") or {}), "max_length": length}
    return dataclasses.replace(script, config={**script.config, "searcher": searcher})
