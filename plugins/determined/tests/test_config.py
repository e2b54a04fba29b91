"""Experiment files written for Determined."""

from __future__ import annotations

from pathlib import Path

import pytest

from detcore.config import load_config
from detcore_determined.migrate import migrate_config

OLD = """\
# An experiment of 2020.
description: digits   # kept
entrypoint: python3 -m determined.launch.horovod --trial model_def:DigitsTrial  # launched
batches_per_step: 50
hyperparameters:
    global_batch_size: 32
    learning_rate: {type: log, base: 10, minval: -4, maxval: -2}
searcher: {name: single, metric: val_loss, max_length: {batches: 100}}
environment:
  image: "determinedai/environments:cuda-11.3"
"""


def test_only_settings_with_new_names_change(tmp_path: Path) -> None:
    migrated = migrate_config(OLD)
    assert migrated.num_changes == 2
    assert migrated.text == OLD.replace("batches_per_step", "scheduling_unit").replace(
        "python3 -m determined.launch.horovod --trial ", ""
    )
    assert migrate_config(migrated.text).text == migrated.text
    path = tmp_path / "const.yaml"
    path.write_text(migrated.text)
    assert load_config(path).config.entrypoint == "model_def:DigitsTrial"
    (note,) = migrated.findings
    assert note.kind == "note"
    assert note.line == 9
    assert "environment is for a cluster" in note.problem


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("python3 -m determined.launch.torch_distributed python3 train.py --lr 1",
         "python3 train.py --lr 1"),
        ("'python3 -m determined.exec.harness model_def:T'", "model_def:T"),
        ("[python3, -m, determined.launch.torch_distributed, python3, train.py]",
         "[python3, train.py]"),
        (">-  # why\n  python3 -m determined.launch.torch_distributed\n  python3 train.py\n",
         "python3 train.py\n"),
        ("|\n  python3 -m determined.launch.horovod \\\n    python3 train.py \\\n    --lr 1\n",
         '"python3 train.py \\\\\\n  --lr 1"\n'),
        ("&run python3 -m determined.launch.torch_distributed python3 t.py\ndescription: *run",
         "&run python3 t.py\ndescription: *run"),
        ("!!str python3 -m determined.launch.torch_distributed python3 t.py  # it",
         "!!str python3 t.py  # it"),
        ("&run !!str python3 -m determined.launch.horovod --trial m:T --more", "&run !!str m:T"),
        ("'python3 -m determined.launch.horovod  sh -c ''a b'' '", "\"sh -c 'a b'\""),
        ("python3 -m determined.launch.horovod --autohorovod python3 t.py", "python3 t.py"),
        ("\n  python3 -m determined.launch.horovod python3 t.py\n  --more 3  # c",
         "\n  python3 t.py --more 3  # c"),
        ("model_def:T", "model_def:T"),
        ("python3 train.py", "python3 train.py"),
    ],
)  # fmt: skip
def test_launchers_are_removed(old: str, new: str) -> None:
    frame = "searcher: {{name: single, metric: m, max_length: {{batches: 1}}}}\nentrypoint: {}\n"
    frame += "hyperparameters: {{global_batch_size: 1}}\n"
    migrated = migrate_config(frame.format(old))
    assert migrated.text == frame.format(new)
    assert migrated.findings == ()


def test_mistakes_have_position_and_advice() -> None:
    source = (
        "entrypoint: python3 -m determined.launch.deepspeed --trial m:T\n"
        "hyperparameters: {global_batch_size: 1}\n"
        "searcher:\n  name: adaptive_simple\n  metric: m\n  max_length: {batches: 1}\n"
    )
    migrated = migrate_config(source)
    assert migrated.text == source
    missing, finding = migrated.findings
    assert "'max_trials' is missing" in missing.problem
    assert (finding.line, finding.kind) == (4, "left")
    assert "adaptive_asha" in str(finding)
    (launcher,) = migrate_config(source.replace("adaptive_simple", "single")).findings
    assert (launcher.line, launcher.column) == (1, 24)
    assert launcher.name == "determined.launch.deepspeed"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "a: 1\n",
        "- searcher: 1\n",
        "apiVersion: v1\nkind: {{ .Values.x }}\n",
        "\t\n",
        "x: !!python/none\n",
    ],
)
def test_other_files_are_unchanged(source: str) -> None:
    migrated = migrate_config(source)
    assert migrated.text == source
    assert migrated.findings == ()


def test_unreadable_experiment_file_is_an_error() -> None:
    source = "searcher:\n  name: [single\nentrypoint: x\n"
    (finding,) = migrate_config(source).findings
    assert finding.kind == "error"
    assert finding.line >= 2


def test_secrets_are_not_repeated() -> None:
    source = (
        "entrypoint: m:T\nsearcher: {name: single, metric: m, max_length: {batches: 1}}\n"
        "checkpoint_storage: {type: s3, bucket: b, secret_kee: hunter2}\n"
    )
    findings = migrate_config(source).findings
    assert findings
    assert "hunter2" not in str(findings)
