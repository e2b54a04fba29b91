"""Open a storage back end from the specification in an experiment file or of a caller."""

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


# File systems that take a password separately from the URL.
_WITH_PASSWORD = frozenset({"ftp", "sftp", "smb", "ssh"})


def open_storage(
    spec: str | Mapping[str, Any] | None, *, home: Path, plugins: PluginManager | None
) -> StorageBackend:
    """Return the storage that a specification names. Nothing is connected or written yet.

    Types and URL schemes of plugins take precedence; any other URL goes to fsspec, by way of the
    distribution detcore-storage.

    Args:
        spec: None for ``<home>/checkpoints``, an absolute path, a URL, or a mapping with ``type``
            and the fields of that type. A plugin's settings class gets a URL of its schemes
            through its class method ``from_url(url)``, a mapping through ``model_validate``.
        home: The folder of records.
        plugins: Registry of storage types; None where `spec` is a path or a URL of fsspec.

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
                "Write '/folder', 'file:///folder' or 's3://bucket/prefix'."
            )
        return LocalStorage(url)
    parts = urlsplit(url)
    if parts.query or parts.fragment or ";" in parts.path:
        raise ConfigError(
            f"checkpoint_storage {url!r} has parameters, a query or a fragment.\n"
            "Only scheme and path say where the files are; pass options as a mapping with 'type'."
        )
    if ".." in unquote(parts.path).split("/") or parts.netloc == "..":
        raise ConfigError(f"checkpoint_storage {url!r} has a component '..'")
    for storage_type in types.values():
        if parts.scheme in storage_type.schemes:
            return _build(storage_type, "from_url", url)
    if parts.scheme == "file":
        if parts.netloc:
            raise ConfigError(
                f"checkpoint_storage {url!r} names a host, {parts.netloc!r}.\n"
                "A file URL has three slashes: file:///folder"
            )
        return LocalStorage(unquote(parts.path) or "/")
    return _open_by_fsspec(url, parts)


def _open_by_fsspec(url: str, parts: SplitResult) -> StorageBackend:
    """Open a URL of any other scheme; a password must not be part of the recorded URL."""
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
        return _build(types[name], "model_validate", fields)
    how = "Install the plugin that provides it (detcore plugins list shows what is installed)."
    raise StorageTypeError(
        f"no installed plugin provides the storage type {name!r}.\n"
        f"Storage types here: {', '.join(sorted(types))}.\n"
        f"{describe_missing_name(name) or how}"
    )


def _build(storage_type: StorageType, maker: str, given: object) -> StorageBackend:
    settings_class = _load(storage_type.settings)
    try:
        settings = getattr(settings_class, maker)(given)
    except DetcoreError:
        raise
    except ValueError as error:
        raise ConfigError(
            f"the checkpoint_storage of type {storage_type.name!r} cannot be used: {_said(error)}"
        ) from None  # the values may be secrets
    backend: StorageBackend = _load(storage_type.backend)(settings)
    return backend


def _said(error: ValueError) -> str:
    """Return the text of an error, that of pydantic's without values and links."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found)


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"a storage plugin names {name!r}, which cannot be imported: {error}.\n"
            "Look at it with: detcore plugins doctor"
        ) from error
