"""Checks of the metadata and labels that users set on models and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from detcore._log import encode_document
from detcore.errors import ConfigError

__all__ = ["checked_metadata", "checked_texts"]


def checked_metadata(metadata: object) -> dict[str, Any]:
    """Return a copy of metadata as a dictionary.

    Raises:
        ConfigError: If it is no dictionary of JSON values.
    """
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise ConfigError(f"metadata is {metadata!r}; expected a dictionary with texts as keys")
    try:
        encode_document(metadata)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"metadata cannot be kept as JSON: {error}") from error
    return dict(metadata)


def checked_texts(what: str, texts: object) -> list[str]:
    """Return a list of texts.

    Raises:
        ConfigError: If it is something else; one text is no list of texts.
    """
    plain = None if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    if plain is None or not all(isinstance(text, str) for text in plain):
        raise ConfigError(f"{what} is {texts!r}; expected a list of texts")
    return plain
