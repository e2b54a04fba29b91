"""Inspect a ``tf.data`` pipeline before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from detcore_estimator.tensorflow_versions import tf

# Kinds of datasets whose iterators make those of their inputs at once (TensorFlow 2.15 to 2.21).
_BEGIN_AT_ONCE = frozenset(
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

SeedsDrawn: TypeAlias = Literal["at once", "at first read", "later"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Properties of a pipeline that matter for resuming in the middle of it.

    Attributes:
        num_shuffles: Shuffles that an iterator of the pipeline has when all parts have begun.
        seeds_drawn: When an iterator's shuffles have drawn their seeds: "at once" when it is made,
            "at first read" where something shuffled is shuffled again, or "later", as with
            ``repeat()``.
        has_shuffling_functions: Whether its functions make datasets that are shuffled.
        has_nested_datasets: Whether its functions or elements contain datasets that were made
            outside. Their shuffles cannot be seen, and count how often each was begun.
        has_cache: Whether a part of it is a cache, whose state would be the whole cache.
        has_random_functions: Whether its functions contain random operations. Each iterator
            recreates them, and they start again with their first value.
        has_parallel_functions: Whether functions run in parallel.
        calls_python: Whether its functions call Python.
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
    """Return what can be seen of a dataset's pipeline."""
    kinds = [_kind(part) for part in _parts(dataset)]
    nodes = list(_function_nodes(dataset))
    return Pipeline(
        num_shuffles=sum("Shuffle" in kind for kind in kinds),
        seeds_drawn=_seeds_drawn(dataset),
        has_shuffling_functions=any("Shuffle" in node.op for node in nodes),
        has_nested_datasets=any(_holds_datasets(part) for part in _parts(dataset)),
        has_cache=any("Cache" in kind for kind in kinds),
        has_random_functions=any(
            "seed2" in node.attr and not node.op.startswith("Stateless") for node in nodes
        ),
        has_parallel_functions=any("Parallel" in kind for kind in kinds),
        calls_python=any(node.op in _PYTHON_OPS for node in nodes),
    )


def derives_from(dataset: Any, known: Iterable[Any]) -> bool:
    """Whether a dataset is one of `known`, or was made from one of them."""
    marks = {id(part) for part in known}
    return any(id(part) in marks for part in _parts(dataset))


def tuned(dataset: Any, pipeline: Pipeline) -> Any:
    """Return the dataset without tf.data's autotuning if there is nothing to tune.

    Autotuning starts a thread for each iterator and waits for it at the end, 15 ms, which matters
    if epochs are short. Pipelines with parallel parts keep it.
    """
    options = tf.data.Options()
    if pipeline.calls_python:
        # How far a reader runs ahead is a matter of chance, and with it how often a generator has
        # drawn from NumPy's random numbers when those are saved. So nothing is read ahead here.
        options.experimental_optimization.inject_prefetch = False
        return dataset.with_options(options)
    if pipeline.has_parallel_functions:
        return dataset
    options.autotune.enabled = False
    if "Prefetch" not in _kind(dataset):
        # With tuning on, tf.data would add this: batches are prepared in parallel with training.
        dataset = dataset.prefetch(_AHEAD)
    return dataset.with_options(options)


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those that it is made from, each as often as it is used."""
    yield dataset
    for source in dataset._inputs():
        yield from _parts(source)


def _kind(dataset: Any) -> str:
    """Return the kind of a dataset, such as "ParallelMap".

    With TensorFlow's V2 behaviour off, each dataset is wrapped in an adapter.
    """
    if isinstance(dataset, tf.data.Dataset) and type(dataset).__name__ == "DatasetV1Adapter":
        return _kind(dataset._dataset)
    return type(dataset).__name__.removeprefix("_").removesuffix("Dataset")


def _seeds_drawn(dataset: Any) -> SeedsDrawn:
    late = {
        kind
        for part in _parts(dataset)
        if (kind := _kind(part)) not in _BEGIN_AT_ONCE and _reads_a_shuffle(part)
    }
    if not late:
        return "at once"
    return "at first read" if late == {"Shuffle"} else "later"


def _reads_a_shuffle(dataset: Any) -> bool:
    return any("Shuffle" in _kind(part) for source in dataset._inputs() for part in _parts(source))


def _holds_datasets(part: Any) -> bool:
    """Whether the functions of a dataset capture others, or a source has some as elements."""
    specs = tf.nest.flatten(part.element_spec) if not part._inputs() else []
    return any(isinstance(spec, tf.data.DatasetSpec) for spec in specs) or any(
        tensor.dtype == tf.variant
        for wrapper in part._functions()
        for tensor in wrapper.function.captured_inputs
    )


def _function_nodes(dataset: Any) -> Iterator[Any]:
    """Yield the operations in the functions of a pipeline, and in the functions these call."""
    for part in _parts(dataset):
        for wrapper in part._functions():
            definition = wrapper.function.graph.as_graph_def()
            yield from definition.node
            for function in definition.library.function:
                yield from function.node_def
