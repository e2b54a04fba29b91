"""Inspect a ``tf.data`` pipeline before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from detcore_estimator.tensorflow_versions import tf

# Kinds of datasets whose iterators create those of their inputs eagerly (TensorFlow 2.15 to 2.21).
_EAGER_KINDS = frozenset(
    {
        "AssertCardinality",
        "Batch",
        "Filter",
        "FlatMap",
        "Interleave",
        "Map",
        "Options",
        "PaddedBatch",
        "ParallelBatch",
        "ParallelInterleave",
        "ParallelMap",
        "Prefetch",
        "Shard",
        "Skip",
        "Take",
        "Unbatch",
        "Zip",
    }
)
_PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_AHEAD = 8

SeedsDrawn: TypeAlias = Literal["immediately", "at first read", "later"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Properties of a pipeline that matter for resuming in the middle of an epoch.

    Attributes:
        num_shuffles: Number of shuffles in an iterator when all parts have started.
        seeds_drawn: Time at which an iterator's shuffles draw their seeds: "immediately" when the
            iterator is created, "at first read" for nested shuffles, or "later", for example with
            ``repeat()``.
        has_shuffling_functions: Whether functions create shuffled datasets.
        has_nested_datasets: Whether functions or elements contain datasets created outside. Their
            shuffles are invisible, and count how often each was started.
        has_cache: Whether the pipeline has a cache, whose state would be the whole cache.
        has_random_functions: Whether functions contain random operations. Each iterator recreates
            them, and they start again with their first value.
        has_parallel_functions: Whether functions run in parallel.
        calls_python: Whether functions call Python.
    """

    num_shuffles: int
    seeds_drawn: SeedsDrawn
    has_shuffling_functions: bool
    has_nested_datasets: bool
    has_cache: bool
    has_random_functions: bool
    has_parallel_functions: bool
    calls_python: bool


def inspect_pipeline(dataset: Any) -> Pipeline:
    """Return the visible properties of a dataset's pipeline."""
    kinds = [_get_kind(part) for part in _list_parts(dataset)]
    nodes = list(_function_nodes(dataset))
    return Pipeline(
        num_shuffles=sum("Shuffle" in kind for kind in kinds),
        seeds_drawn=_seeds_drawn(dataset),
        has_shuffling_functions=any("Shuffle" in node.op for node in nodes),
        has_nested_datasets=any(_holds_datasets(part) for part in _list_parts(dataset)),
        has_cache=any("Cache" in kind for kind in kinds),
        has_random_functions=any(
            "seed2" in node.attr and not node.op.startswith("Stateless") for node in nodes
        ),
        has_parallel_functions=any("Parallel" in kind for kind in kinds),
        calls_python=any(node.op in _PYTHON_OPS for node in nodes),
    )


def derives_from(dataset: Any, known: Iterable[Any]) -> bool:
    """Whether a dataset is in `known`, or is derived from a dataset in `known`."""
    marks = {id(part) for part in known}
    return any(id(part) in marks for part in _list_parts(dataset))


def tune_dataset(dataset: Any, pipeline: Pipeline) -> Any:
    """Return the dataset without tf.data's autotuning if it has no parallel parts to tune.

    Autotuning starts a thread for each iterator and waits 15 ms for it at the end, which matters
    for short epochs.
    """
    options = tf.data.Options()
    if pipeline.calls_python:
        # The distance that a reader runs ahead is random. So would be the number of draws from
        # NumPy's generator when its state is saved. Python code is therefore not read ahead.
        options.experimental_optimization.inject_prefetch = False
        return dataset.with_options(options)
    if pipeline.has_parallel_functions:
        return dataset
    options.autotune.enabled = False
    if "Prefetch" not in _get_kind(dataset):
        # Autotuning would add this prefetch, which prepares batches in parallel with training.
        dataset = dataset.prefetch(_AHEAD)
    return dataset.with_options(options)


def _list_parts(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and all its inputs, each as often as it is used."""
    yield dataset
    for source in dataset._inputs():
        yield from _list_parts(source)


def _get_kind(dataset: Any) -> str:
    """Return the kind of a dataset, such as "ParallelMap".

    Without TensorFlow's V2 behaviour, an adapter wraps each dataset.
    """
    if isinstance(dataset, tf.data.Dataset) and type(dataset).__name__ == "DatasetV1Adapter":
        return _get_kind(dataset._dataset)
    return type(dataset).__name__.removeprefix("_").removesuffix("Dataset")


def _seeds_drawn(dataset: Any) -> SeedsDrawn:
    late = {
        kind
        for part in _list_parts(dataset)
        if (kind := _get_kind(part)) not in _EAGER_KINDS and _reads_a_shuffle(part)
    }
    if not late:
        return "immediately"
    return "at first read" if late == {"Shuffle"} else "later"


def _reads_a_shuffle(dataset: Any) -> bool:
    return any(
        "Shuffle" in _get_kind(part) for source in dataset._inputs() for part in _list_parts(source)
    )


def _holds_datasets(part: Any) -> bool:
    """Whether the functions of a dataset capture datasets, or a source has datasets as elements."""
    specs = tf.nest.flatten(part.element_spec) if not part._inputs() else []
    return any(isinstance(spec, tf.data.DatasetSpec) for spec in specs) or any(
        tensor.dtype == tf.variant
        for wrapper in part._functions()
        for tensor in wrapper.function.captured_inputs
    )


def _function_nodes(dataset: Any) -> Iterator[Any]:
    """Yield the operations in a pipeline's functions, including the functions they call."""
    for part in _list_parts(dataset):
        for wrapper in part._functions():
            definition = wrapper.function.graph.as_graph_def()
            yield from definition.node
            for function in definition.library.function:
                yield from function.node_def
