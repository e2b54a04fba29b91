"""Reducers for classifiers return the same bits for any split of the records."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_splits import assert_same, reduce_split, splits, whole

from detcore.errors import MetricError, MetricTypeError
from detcore.metrics import (
    AUROC,
    Accuracy,
    AveragePrecision,
    ConfusionMatrix,
    F1Score,
    MetricReducer,
    Precision,
    Recall,
)

EXAMPLES = settings(max_examples=60, deadline=None)
# Few distinct scores, so that ties are common, within a class and between both.
SCORES = st.sampled_from([-1.5, 0.0, 0.1, 0.25, 0.25 + 2**-40, 3.0, math.inf, -math.inf])
SCORED = st.lists(st.tuples(st.integers(0, 1), SCORES), max_size=14)
CLASSES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=14)


def area_by_pairs(rows: list[tuple[int, float]]) -> float:
    ones = [score for label, score in rows if label]
    zeros = [score for label, score in rows if not label]
    wins = sum(
        Fraction((one > zero) * 2 + (one == zero), 2)
        for one, zero in itertools.product(ones, zeros)
    )
    return float(wins / (len(ones) * len(zeros))) if ones and zeros else math.nan


def average_precision_by_thresholds(rows: list[tuple[int, float]]) -> float:
    num_ones = sum(label for label, _ in rows)
    area, recall = Fraction(0), Fraction(0)
    for threshold in sorted({score for _, score in rows}, reverse=True):
        called = [label for label, score in rows if score >= threshold]
        if num_ones:
            now = Fraction(sum(called), num_ones)
            area += (now - recall) * Fraction(sum(called), len(called))
            recall = now
    return float(area) if num_ones else math.nan


def columns(rows: Any) -> dict[str, Any]:
    array = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return {"labels": array[:, 0], "predictions": array[:, 1]}


def assert_near(value: float, expected: float) -> None:
    assert type(value) is float
    assert value == pytest.approx(expected, rel=1e-12, nan_ok=True)


@EXAMPLES
@given(st.data())
def test_area_and_average_precision(data: st.DataObject) -> None:
    rows = data.draw(SCORED)
    split = data.draw(splits(len(rows)))
    area = reduce_split(AUROC(), columns(rows), split)
    assert_same(area, area_by_pairs(rows))
    average = reduce_split(AveragePrecision(), columns(rows), split, as_list=True)
    assert_same(average, whole(AveragePrecision(), columns(rows)))
    assert_near(average, average_precision_by_thresholds(rows))


@EXAMPLES
@given(st.data())
def test_accuracy_and_confusion_matrix(data: st.DataObject) -> None:
    rows = data.draw(CLASSES)
    split = data.draw(splits(len(rows)))
    right = sum(label == predicted for label, predicted in rows)
    accuracy = reduce_split(Accuracy(), columns(rows), split)
    assert_same(accuracy, right / len(rows) if rows else math.nan)
    matrix = reduce_split(ConfusionMatrix(4), columns(rows), split, as_list=True)
    assert matrix.dtype == np.int64
    assert matrix.tolist() == [[rows.count((i, j)) for j in range(4)] for i in range(4)]


def score_of(kind: str, right: int, labels: int, predicted: int, zero_division: float) -> float:
    precision = right / predicted if predicted else None
    recall = right / labels if labels else None
    if kind == "precision":
        return zero_division if precision is None else precision
    if kind == "recall":
        return zero_division if recall is None else recall
    if precision is None and recall is None:
        return zero_division
    if not precision or not recall:
        return 0.0
    return 2 * precision * recall / (precision + recall)


@EXAMPLES
@given(
    data=st.data(),
    kind=st.sampled_from([("precision", Precision), ("recall", Recall), ("f1", F1Score)]),
    average=st.sampled_from(["binary", "micro", "macro"]),
    zero_division=st.sampled_from([0.0, 1.0, math.nan]),
    num_classes=st.sampled_from([None, 4]),
)
def test_precision_recall_and_f1(
    data: st.DataObject, kind: Any, average: Any, zero_division: float, num_classes: int | None
) -> None:
    is_binary = average == "binary"
    rows = [(a % 2, b % 2) if is_binary else (a, b) for a, b in data.draw(CLASSES)]
    num_classes = None if is_binary else num_classes
    reducer = kind[1](average, zero_division=zero_division, num_classes=num_classes)
    value = reduce_split(reducer, columns(rows), data.draw(splits(len(rows))))
    assert_same(value, whole(reducer, columns(rows)))
    seen_classes = sorted({index for row in rows for index in row})
    classes = [1] if is_binary else list(range(num_classes)) if num_classes else seen_classes
    counts = [
        (
            rows.count((index, index)),
            sum(label == index for label, _ in rows),
            sum(predicted == index for _, predicted in rows),
        )
        for index in classes
    ]
    if average == "micro":
        counts = [(sum(c[0] for c in counts), sum(c[1] for c in counts), sum(c[2] for c in counts))]
    scores = [score_of(kind[0], *count, zero_division) for count in counts]
    scores = [score for score in scores if not math.isnan(score)]
    assert_near(value, sum(scores) / len(scores) if rows and scores else math.nan)


def test_accuracy_accepts_all_prediction_forms() -> None:
    labels = np.array([0, 1, 2, 1], np.uint8)
    right = np.array([[3.0, 1, 2], [0, 0.5, 0.5], [-3, -2, -1], [9, 0, 0]], np.float32)
    assert whole(Accuracy(), {"labels": labels, "predictions": right}) == 0.75
    assert whole(Accuracy(), {"labels": labels[:, None], "predictions": labels}) == 1.0
    binary = {
        "labels": np.array([True, False, True]),
        "predictions": np.array([[0.5], [0.2], [0.9]]),
    }
    assert whole(Accuracy(threshold=0.5), binary) == 2 / 3
    assert whole(Recall(threshold=0.5), binary) == 0.5
    assert whole(Precision(threshold=0.1), binary) == 2 / 3
    assert whole(ConfusionMatrix(2, threshold=0.5), binary).tolist() == [[1, 0], [1, 1]]
    assert whole(Accuracy(), {"labels": 1, "predictions": np.int64(1)}) == 1.0
    assert whole(AUROC(), {"labels": [0, 1], "predictions": np.array([[0.1], [0.2]])}) == 1.0
    columns_of_two = {"labels": [0, 1], "predictions": [[0.9, 0.1], [0.3, 0.7]]}
    assert whole(F1Score(), columns_of_two) == 1.0


def test_accuracy_uses_weights() -> None:
    batch = {"labels": [1, 0, 1], "predictions": [1, 1, 1], "weights": np.array([[0.5], [1], [0]])}
    assert whole(Accuracy(), batch) == 0.5 / 1.5


def test_metrics_without_records() -> None:
    none: dict[str, Any] = {"labels": np.empty(0, np.int32), "predictions": np.empty(0, np.float32)}
    reducers: list[MetricReducer] = [Accuracy(), AUROC(), AveragePrecision(), F1Score("macro")]
    for reducer in reducers:
        assert math.isnan(whole(reducer, none))
    assert whole(ConfusionMatrix(2), none).tolist() == [[0, 0], [0, 0]]
    assert math.isnan(whole(Accuracy(), {**none, "predictions": np.empty((0, 10))}))


@pytest.mark.parametrize(
    ("reducer", "labels", "predictions", "match"),
    [
        (AUROC(), [0, 1], [0.1, math.nan], "1 of 2 predictions in a batch are NaN"),
        (AUROC(), [0, 2], [0.1, 0.2], "a label is 2; the labels of two classes must be 0 or 1"),
        (AUROC(), [-1, 1], [0.1, 0.2], "a label is -1"),
        (AUROC(), [0, 1], [[0.1, 0.9]] * 2, r"'predictions' has the shape \(2, 2\)"),
        (AUROC(), [0, 1], [0.1], "2 labels, but 1 predictions"),
        (
            Accuracy(),
            [0, 1],
            [0.2, 0.7],
            "'predictions' has 0.2, which is not a class index.\nPass th",
        ),
        (Accuracy(), [0.5], [1], "'labels' has 0.5"),
        (Accuracy(), [math.nan], [1], "'labels' has nan"),
        (Accuracy(), [0], [math.nan], "'predictions' has nan"),
        (Accuracy(), [0], [[0.1, math.nan]], "predictions in a batch are NaN"),
        (Accuracy(threshold=0), [0], [math.nan], "predictions in a batch are NaN"),
        (Accuracy(threshold=0), [0], [[0.1, 0.2]], r"the shape \(1, 2\)"),
        (Accuracy(), [[0, 1], [1, 0]], [[0.2, 0.8]] * 2, "class indices in place of one-hot"),
        (Accuracy(), [0, 1, 1], [[0.2, 0.8]] * 2, "3 labels, but predictions for 2 records"),
        (Accuracy(), np.array([-1], np.int8), [0], "'labels' has the class -1"),
        (ConfusionMatrix(3), np.array([3], np.uint8), [0], "classes must be from 0 to 2"),
        (ConfusionMatrix(300), np.array([3], np.uint8), [300], "'predictions' has the class 300"),
        (ConfusionMatrix(3), [0], [[0.5, 0.5]], "but num_classes is 3"),
        (F1Score(), [2], [1], "a label is 2"),
        (F1Score(), [1], [2], "'predictions' has the class 2"),
        (Recall("macro", num_classes=3), [1], [3], "from 0 to 2"),
    ],
)
def test_invalid_batches_raise(reducer: Any, labels: Any, predictions: Any, match: str) -> None:
    with pytest.raises(MetricError, match=match):
        reducer.accumulate({"labels": labels, "predictions": predictions})


def test_invalid_arguments_raise() -> None:
    wrong: Any = "weighted"
    with pytest.raises(MetricError, match="average is 'weighted'"):
        F1Score(wrong)
    with pytest.raises(MetricError, match="average='micro' or average='macro'"):
        F1Score(num_classes=3)
    with pytest.raises(MetricError, match="zero_division is 'warn'"):
        F1Score(zero_division="warn")  # type: ignore[arg-type]
    with pytest.raises(MetricError, match="zero_division is 2"):
        F1Score(zero_division=2)
    with pytest.raises(MetricTypeError, match="threshold is 'half'"):
        Accuracy(threshold="half")  # type: ignore[arg-type]
    with pytest.raises(MetricError, match="num_classes is 0"):
        ConfusionMatrix(0)
    with pytest.raises(MetricError, match="but there are 3 classes"):
        ConfusionMatrix(3, threshold=0.5)
