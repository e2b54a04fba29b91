"""Describe a checkpoint and its manifest, for ``detcore checkpoint describe``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detcore.cli._output import Column, print_fields, print_heading, print_table
from detcore.describe import format_bytes, format_time

if TYPE_CHECKING:
    from detcore.checkpoint import Manifest
    from detcore.database import CheckpointRecord


_TENSORS_SHOWN = 40
_AXES_SHOWN = 8


def print_description(
    record: CheckpointRecord, manifest: Manifest | None, path: Path | None
) -> None:
    """Print the record of a checkpoint, and its manifest if it could be read."""
    fields = {
        "uuid": record.uuid,
        "state": record.state,
        "experiment": str(record.experiment_id),
        "trial": str(record.trial_id),
        "steps completed": str(record.steps_completed),
        "saved": format_time(record.committed_at),
        "size": format_bytes(record.size_bytes),
        "where": str(path or f"{record.storage_url}/{record.uuid}"),
    }
    if manifest is not None:
        fields["parent"] = manifest.parent or "-"
        fields["versions"] = ", ".join(f"{k} {v}" for k, v in manifest.versions.items())
    print_fields(fields)
    print_heading("metadata")
    click.echo(json.dumps(record.metadata, indent=2))
    print_heading("files")
    print_table(
        [Column("name", wrap=True), Column("size", align="right"), Column("digest")],
        [
            [name, format_bytes(size), _digest(manifest, name)]
            for name, size in sorted(record.resources.items())
        ],
    )
    if manifest is not None and manifest.tensors:
        _print_tensors(manifest)


def _print_tensors(manifest: Manifest) -> None:
    print_heading("tensors")
    print_table(
        [Column("name", wrap=True), Column("shape"), Column("dtype"), Column("file", wrap=True)],
        [
            [_plain_text(tensor.name), _shape(tensor.shape), _plain_text(tensor.dtype), tensor.file]
            for tensor in manifest.tensors[:_TENSORS_SHOWN]
        ],
    )
    more = len(manifest.tensors) - _TENSORS_SHOWN
    if more > 0:
        click.echo(f"and {more} more: --json shows all")


def _shape(shape: tuple[int, ...]) -> str:
    text = ", ".join(map(str, shape[:_AXES_SHOWN]))
    return f"({text}, ...)" if len(shape) > _AXES_SHOWN else f"({text})"


def _plain_text(text: str) -> str:
    """Return a text of a checkpoint as it can be printed: terminals obey some characters."""
    return text if text.isprintable() else repr(text)


def _digest(manifest: Manifest | None, name: str) -> str:
    digest = manifest.files.get(name) if manifest is not None else None
    return digest.value[:16] if digest is not None else "-"


def plain_manifest(manifest: Manifest | None) -> dict[str, Any]:
    """Return the fields of a manifest that the record lacks, for JSON."""
    if manifest is None:
        return {"files": {}, "parent": None, "versions": {}, "tensors": []}
    return {
        "files": manifest.files,
        "parent": manifest.parent,
        "versions": manifest.versions,
        "tensors": manifest.tensors,
    }
