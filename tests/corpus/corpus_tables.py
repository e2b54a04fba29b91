"""Write the results of the corpus: one file for machines, and tables for people."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corpus_runs import Outcome, Status

__all__ = ["write_results"]

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
# Receives a row for each script.
FULL_TABLE = HERE / "RESULTS.md"
# Receives a row for each way to use detcore, between the marks below.
PAGE = HERE.parents[1] / "docs" / "data.md"
START, END = "<!-- table: corpus -->", "<!-- end of table -->"
TITLES = {
    "pytorch_trial": "`PyTorchTrial`",
    "lightning": "Lightning, `for_lightning`",
    "transformers": "Hugging Face, `for_transformers`",
    "accelerate": "Accelerate, `for_accelerate`",
    "keras": "Keras, `detcore_keras.fit`",
    "keras_trial": "`TFKerasTrial`",
    "estimator": "`EstimatorTrial`",
    "core_api": "loops in PyTorch, NumPy, JAX, scikit-learn",
    "gpu": "`PyTorchTrial` of `nox -s gpu`, on a CPU",
}
COLUMNS = (Status.EXACT, Status.REFUSED, Status.REPORTED, Status.SILENT)
MAX_DETAIL = 160


def write_results(outcomes: Sequence[Outcome], environment: str) -> None:
    """Merge outcomes into the earlier results, and write both tables.

    Args:
        outcomes: Outcomes of this run.
        environment: Versions of the frameworks. Results of other environments are kept.
    """
    documents: dict[str, dict[str, dict[str, Any]]] = {}
    if RESULTS.exists():
        documents = json.loads(RESULTS.read_text())
    rows = documents.setdefault(environment, {})
    for outcome in outcomes:
        row = dataclasses.asdict(outcome)
        # A run without the control keeps the earlier result of the control.
        row["alone"] = row["alone"] or rows.get(outcome.name, {}).get("alone", "")
        rows[outcome.name] = row
    documents[environment] = dict(sorted(rows.items()))
    RESULTS.write_text(json.dumps(documents, indent=1, sort_keys=True) + "\n")
    FULL_TABLE.write_text("\n".join(_list_lines(documents)) + "\n")
    text = PAGE.read_text()
    before, after = text.split(START)
    table = "\n".join(_list_groups([row for part in documents.values() for row in part.values()]))
    PAGE.write_text(f"{before}{START}\n{table}\n{END}{after.split(END)[1]}")


def _list_lines(documents: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    lines = ["# Results of the corpus", "", "`corpus_runs.py --write` writes this file."]
    for environment, rows in documents.items():
        lines += [
            "",
            f"## {environment}",
            "",
            "| script | kills | result | library alone |",
            "|---|---|---|---|",
        ]
        for row in rows.values():
            result = row["status"] + (f": {_shorten(row['detail'])}" if row["detail"] else "")
            lines.append(f"| {row['name']} | {row['kills']} | {result} | {row['alone']} |")
    return lines


def _list_groups(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"| scripts with | {' | '.join(COLUMNS)} | exact with the library alone |",
        "|---|---|---|---|---|---|",
    ]
    for family, title in TITLES.items():
        group = [row for row in rows if row["name"].split("/")[0] == family]
        if not group:
            continue
        counts = collections.Counter(row["status"] for row in group)
        alone = [row["alone"] for row in group if row["alone"]]
        control = f"{alone.count('exact')} of {len(alone)}" if alone else ""
        cells = [str(counts[column]) for column in COLUMNS]
        lines.append(f"| {title} | {' | '.join(cells)} | {control} |")
    counts = collections.Counter(row["status"] for row in rows)
    cells = [str(counts[column]) for column in COLUMNS]
    return [*lines, f"| all | {' | '.join(cells)} | |"]


def _shorten(text: str) -> str:
    words = re.sub(r" at 0x[0-9a-f]+", "", text.replace("|", "/"))
    return words if len(words) <= MAX_DETAIL else words[:MAX_DETAIL] + " ..."
