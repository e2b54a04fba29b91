"""Open a storage back end from the specification in an experiment file or from a caller."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from detcore.contract.errors import (
    ConfigError,
    DetcoreError,
    PluginError,
    StorageTypeError,
)
from detcore.contract.values import RETENTION_DEFAULTS
from detcore.optional_distributions import describe_missing_name, import_distribution
from detcore.storage.local_storage import LocalStorage

if TYPE_CHECKING:
    from detcore.contract.storage import StorageBackend
    from detcore.plugins import PluginManager, StorageType


# File systems that accept a password separately from the URL.
_WITH_PASSWORD = frozenset({"ftp", "sftp", "smb", "ssh"})


def open_storage(
    spec: str | Mapping[str, Any] | None, *, home: Path, plugins: PluginManager | None
) -> StorageBackend:
    """Return the storage for a specification, without connecting or writing.

    Types and URL schemes of plugins take precedence. Other URLs are opened by fsspec, through the
    distribution detcore-storage.

    Args:
        spec: None for ``<home>/checkpoints``, an absolute path, a URL, or a mapping with ``type``
            and the fields of that type. A plugin's settings class receives a URL of its schemes
            through its class method ``from_url(url)``, and a mapping through ``model_validate``.
        home: The directory of records.
        plugins: Registry of storage types; None if `spec` is a path or a URL for fsspec.

    Raises:
        ConfigError: If the specification cannot be used (a ValueError).
        StorageTypeError: If no installed plugin provides the type (also a TypeError).
        MissingDistributionError: If a URL needs detcore-storage, which is not installed.
    """
    if spec is None:
        return LocalStorage(home.absolute() / "checkpoints")
    types = plugins.storage_types() if plugins is not None else {}
    if isinstance(spec, str):
        return _open_url(spec, types)
    if isinstance(spec, Mapping):
        return _open_type(spec, types)
    raise ConfigError(
        f"checkpoint_storage is a {type(spec).__name__}; expected a path, a URL, or a mapping "
        "with 'type'"
    )


def _open_url(url: str, types: Mapping[str, StorageType]) -> StorageBackend:
    if not url:
        raise ConfigError("checkpoint_storage is empty; expected an absolute path or a URL")
    if "://" not in url:
        if ".." in url.split("/"):
            raise ConfigError(f"checkpoint_storage {url!r} has a component '..'")
        if not url.startswith("/"):
            raise ConfigError(
                f"checkpoint_storage {url!r} is neither an absolute path nor a URL.\n"
                "Write '/directory', 'file:///directory' or 's3://bucket/prefix'."
            )
        return LocalStorage(url)
    parts = urlsplit(url)
    if parts.query or parts.fragment or ";" in parts.path:
        raise ConfigError(
            f"checkpoint_storage {url!r} has parameters, a query or a fragment.\n"
            "Use only scheme and path, and pass options as a mapping with 'type'."
        )
    if ".." in unquote(parts.path).split("/") or parts.netloc == "..":
        raise ConfigError(f"checkpoint_storage {url!r} has a component '..'")
    for storage_type in types.values():
        if parts.scheme in storage_type.schemes:
            return _build_storage(storage_type, "from_url", url)
    if parts.scheme == "file":
        if parts.netloc:
            raise ConfigError(
                f"checkpoint_storage {url!r} names a host, {parts.netloc!r}.\n"
                "A file URL has three slashes: file:///directory"
            )
        return LocalStorage(unquote(parts.path) or "/")
    return _open_by_fsspec(url, parts)


def _open_by_fsspec(url: str, parts: SplitResult) -> StorageBackend:
    """Open a URL of any other scheme, with the password removed from the recorded URL."""
    if parts.password is not None and parts.scheme not in _WITH_PASSWORD:
        raise ConfigError(
            f"checkpoint_storage has a password in a URL of the scheme {parts.scheme!r}.\n"
            "The URL is recorded with every checkpoint, where other users can read it.\n"
            "Set the password in the variables or files of that file system's library."
        )
    needed_by = f"the storage behind {parts.scheme}:// URLs"
    backend = import_distribution("detcore_storage", needed_by=needed_by).FsspecStorage
    options = {}
    if parts.password is not None:
        url = url.replace(f":{parts.password}@", "@", 1)
        options["password"] = unquote(parts.password)
    storage: StorageBackend = backend(url, **options)
    return storage


def _open_type(spec: Mapping[str, Any], types: Mapping[str, StorageType]) -> StorageBackend:
    if "type" not in spec:
        raise ConfigError(
            f"checkpoint_storage has no 'type'; it has: {', '.join(map(str, spec)) or 'nothing'}.\n"
            f"Storage types here: {', '.join(sorted(types))}."
        )
    name = spec["type"]
    if not isinstance(name, str):
        raise ConfigError(f"checkpoint_storage.type is {name!r}; expected the name of a type")
    fields = {key: value for key, value in spec.items() if key not in ("type", *RETENTION_DEFAULTS)}
    if name in types:
        return _build_storage(types[name], "model_validate", fields)
    advice = "Install the plugin that provides it (to list plugins: detcore plugins list)."
    raise StorageTypeError(
        f"no installed plugin provides the storage type {name!r}.\n"
        f"Storage types here: {', '.join(sorted(types))}.\n"
        f"{describe_missing_name(name) or advice}"
    )


def _build_storage(storage_type: StorageType, method: str, value: object) -> StorageBackend:
    settings_class = _import_object(storage_type.settings)
    try:
        settings = getattr(settings_class, method)(value)
    except DetcoreError:
        raise
    except ValueError as error:
        raise ConfigError(
            f"the checkpoint_storage of type {storage_type.name!r} cannot be used: "
            f"{_describe_error(error)}"
        ) from None  # the values may be secrets
    backend: StorageBackend = _import_object(storage_type.backend)(settings)
    return backend


def _describe_error(error: ValueError) -> str:
    """Return the message of an error, without the values and links of pydantic."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    mistakes = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, mistake['loc']))}: {mistake['msg']}" for mistake in mistakes
    )


def _import_object(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"a storage plugin names {name!r}, which cannot be imported: {error}.\n"
            "Check the plugin with: detcore plugins doctor"
        ) from error
