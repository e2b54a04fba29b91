"""Corrupt a complete experiment file in one place at a time.

Each case replaces a piece of ``complete.yaml``. The mark ``¦`` in the new text is where the mistake
must be reported, and is itself taken out. The last item is the name that must be suggested, or
None where nothing was clearly meant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detcore.config import ExperimentFileError, load_config

COMPLETE = (Path(__file__).parent / "complete.yaml").read_text()
MARK = "¦"

CASES: dict[str, tuple[str, str, str | None]] = {
    # keys of the top level
    "letters swapped": ("scheduling_unit:", "¦schedulnig_unit:", "scheduling_unit"),
    "hyphens": ("checkpoint_policy:", "¦checkpoint-policy:",
                "checkpoint_policy"),
    "camel case": ("min_validation_period:", "¦minValidationPeriod:", "min_validation_period"),
    "one word of two": ("checkpoint_storage:", "¦storage:", "checkpoint_storage"),
    "another tool's word": ("labels:", "¦tags:", "labels"),
    "an earlier name": ("scheduling_unit:", "¦batches_per_step:", "scheduling_unit"),
    "short form": ("hyperparameters:", "¦hparams:", "hyperparameters"),
    "misspelt section": ("reproducibility:", "¦reproducability:", "reproducibility"),
    "misspelt required section": ("searcher:", "¦sercher:", "searcher"),
    "unknown": ("debug: false", "¦banana: false", None),
    "belongs to a section": ("debug: false", "¦slots_per_trial: 2", "resources.slots_per_trial"),
    "belongs to the searcher": ("debug: false", "¦max_length: {batches: 1}",
                                "searcher.max_length"),
    "belongs to the hyperparameters": ("debug: false", "¦global_batch_size: 1",
                                       "hyperparameters.global_batch_size"),
    "twice": ("debug: false", "debug: false\n¦name: again", None),
    # keys of sections
    "only seed": ("experiment_seed:", "¦seed:", "experiment_seed"),
    "bucket": ("bucket: runs", "¦bukcet: runs", "bucket"),
    "secret": ("secret_key:", "¦secretkey:", "secret_key"),
    "field of another storage type": ("prefix: digits", "¦host_path: /digits", None),
    "of another searcher": ("stop_once: false", "¦num_rungs: 2", "max_rungs"),
    # names in values
    "policy": ("checkpoint_policy: best", "checkpoint_policy: ¦bset", "best"),
    "searcher": ("name: adaptive_asha", "name: ¦adaptive_ahsa", "adaptive_asha"),
    "searcher by half its name": ("name: adaptive_asha", "name: ¦asha", "adaptive_asha"),
    "searcher of earlier versions": ("name: adaptive_asha", "name: ¦adaptive_simple",
                                     "adaptive_asha"),
    "searcher unknown": ("name: adaptive_asha", "name: ¦divination", None),
    "storage type": ("type: s3", "type: ¦s33", "s3"),
    "hyperparameter type": ("type: log", "type: ¦logg", "log"),
    "hyperparameter type of another tool": ("type: double", "type: ¦uniform", "double"),
    "no hyperparameter type": ("type: categorical\n    vals", "vals", "type: categorical"),
    "hyperparameter type misspelt": ("    type: int", "    ¦tpye: int", "type"),
    # keys of hyperparameters and lengths
    "max": ("maxval: 128", "¦max: 128", "maxval"),
    "vals": ("vals: [adam", "¦values: [adam", "vals"),
    "unit": ("  batches: 40", "  ¦batch: 40", "batches"),
    "unit in braces": ("{records: 6400}", "{¦record: 6400}", "records"),
    "unit unknown": ("{records: 6400}", "{¦minutes: 6400}", None),
    "two units": ("    epochs: 4", "    epochs: 4\n    ¦batches: 2", None),
    "no unit": ("{records: 6400}", "¦100", "{batches: 100}"),
    # values of the wrong type
    "integer in quotes": ("max_restarts: 2", 'max_restarts: ¦"2"', "2"),
    "batch size in quotes": ("global_batch_size: 32", 'global_batch_size: ¦"32"', "32"),
    "length in quotes": ("  batches: 40", '  batches: ¦"40"', "40"),
    "float for an integer": ("scheduling_unit: 20", "scheduling_unit: ¦20.0", "20"),
    "yes": ("perform_initial_validation: true", "perform_initial_validation: ¦yes", "true"),
    "boolean in quotes": ("debug: false", 'debug: ¦"false"', "false"),
    "zero for a boolean": ("debug: false", "debug: ¦0", "false"),
    "number for a string": ("description: a complete example", "description: ¦12", '"12"'),
    "string for a list": ("labels: [digits, example]", "labels: ¦digits", "[digits]"),
    "mapping for a string": ("project: vision", "project: ¦{name: vision}", None),
    "number for the entry point": ("entrypoint: model_def:DigitsTrial", "entrypoint: ¦5", None),
    "a word for an integer": ("max_restarts: 2", "max_restarts: ¦two", None),
    "octal": ("max_restarts: 2", "max_restarts: ¦02", "2"),
    # values out of range
    "negative": ("max_restarts: 2", "max_restarts: ¦-1", None),
    "zero length": ("    epochs: 4", "    epochs: ¦0", None),
    "divisor": ("divisor: 4", "divisor: ¦1", None),
    "seed too large": ("experiment_seed: 1234", "experiment_seed: ¦2147483648", None),
    "empty name": ("name: digits", 'name: ¦""', None),
    "no values": ("vals: [adam, sgd]", "vals: ¦[]", None),
    "base": ("base: 10", "base: ¦0", None),
    "prefix leads out": ("prefix: digits", "prefix: ¦../digits", None),
    # rules between fields
    "range upside down": ("minval: 16\n    maxval: 128", "minval: ¦160\n    maxval: 128", None),
    "grid without count": (
        "dropout:\n    type: double\n    minval: 0.1\n    maxval: 0.5",
        "¦dropout:\n    type: double\n    minval: 0.1\n    maxval: 0.5",
        "count",
    ),
    "profiling ends first": ("end_after_batch: 20", "end_after_batch: ¦5", None),
    "bracket too large": ("bracket_rungs: [3, 2]", "bracket_rungs: [3, ¦4]", None),
    "two sources": (
        "stop_once: false",
        "source_trial_id: 3\n  ¦source_checkpoint_uuid: abc",
        None,
    ),
    "batch size missing": (
        "  global_batch_size: 32\n",
        "",
        "global_batch_size",
    ),
    "more slots than records": (
        "slots_per_trial: 2\n  max_slots: 8",
        "slots_per_trial: 64\n  max_slots: 64",
        None,
    ),
    "slots do not fit": ("max_slots: 8", "max_slots: ¦1", None),
    # missing fields are reported at the parent key
    "metric missing": ("searcher:\n  name: adaptive_asha\n  metric: val_accuracy\n",
                       "¦searcher:\n  name: adaptive_asha\n", None),
    "bucket missing": ("checkpoint_storage:\n  type: s3\n  bucket: runs\n",
                       "¦checkpoint_storage:\n  type: s3\n", None),
    "maxval missing": ("  dense:\n    type: int\n    minval: 16\n    maxval: 128\n",
                       "  ¦dense:\n    type: int\n    minval: 16\n", None),
    # YAML itself
    "tab": ("data:\n  folder", "data:\n¦\tfolder", None),
    "colon in a value": ("name: digits", "name: digits¦: more", None),
    "bracket never closed": ("labels: [digits, example]", "labels: ¦[digits, example", None),
    "alias": ("project: vision", "project: ¦*vision", None),
}  # fmt: skip

# Additional changes of a case.
ALSO: dict[str, tuple[str, str]] = {
    "no hyperparameter type": ("  optimizer:", "  ¦optimizer:"),
    "grid without count": (
        "  name: adaptive_asha\n  metric: val_accuracy\n  smaller_is_better: false\n  max_length:\n"
        "    epochs: 4\n  max_trials: 16\n  mode: standard\n  divisor: 4\n  max_rungs: 3\n"
        "  bracket_rungs: [3, 2]\n  max_concurrent_trials: 2\n  stop_once: false\n",
        "  name: grid\n  metric: val_accuracy\n  max_length:\n    epochs: 4\n",
    ),
    "batch size missing": ("hyperparameters:", "¦hyperparameters:"),
    "more slots than records": ("global_batch_size: 32", "global_batch_size: ¦32"),
    "tab": ("  augment: {flip: true, shift: 0.1}\n", ""),
}


def mutate(case: str) -> tuple[str, int, int]:
    """Return the corrupted file, and the line and column of the mistake, from 1."""
    old, new, _ = CASES[case]
    text = COMPLETE
    for before, after in filter(None, [ALSO.get(case), (old, new)]):
        assert before in text, f"{before!r} is not in complete.yaml"
        text = text.replace(before, after, 1)
    before, mark, _ = text.partition(MARK)
    assert mark, f"the case {case!r} does not say where the mistake is"
    return text.replace(MARK, ""), before.count("\n") + 1, len(before) - before.rfind("\n")


def load(text: str, folder: Path, models: dict[str, Any]) -> ExperimentFileError:
    path = folder / "exp.yaml"
    path.write_text(text)
    with pytest.raises(ExperimentFileError) as caught:
        load_config(path, models=models)
    return caught.value


def test_file_is_valid_before_mutation(tmp_path: Path, models: dict[str, Any]) -> None:
    path = tmp_path / "exp.yaml"
    path.write_text(COMPLETE)
    assert load_config(path, models=models).config.name == "digits"


@pytest.mark.parametrize("case", CASES)
def test_mutation_has_position_and_suggestion(
    case: str, tmp_path: Path, models: dict[str, Any]
) -> None:
    text, line, column = mutate(case)
    error = load(text, tmp_path, models)
    (item,) = error.diagnostics  # one mistake gives one report
    assert (item.line, item.column) == (line, column), str(error)
    assert item.suggestion == CASES[case][2], str(error)
    check_caret(text, line, column, str(error))


def check_caret(text: str, line: int, column: int, report: str) -> None:
    """Check that the report shows the line and a caret below the mistake."""
    rows = report.splitlines()
    heading = next(i for i, row in enumerate(rows) if f"exp.yaml:{line}:{column}: error: " in row)
    number = next(i for i, row in enumerate(rows[heading:], heading) if row.startswith(f"{line} |"))
    marked_line = rows[number].partition(" | ")[2]
    carets = rows[number + 1].partition(" | ")[2]
    hidden = text.replace('"hunter2hunter2"', "*" * 16)
    assert marked_line == hidden.splitlines()[line - 1].expandtabs(4)
    assert carets.index("^") == column - 1
