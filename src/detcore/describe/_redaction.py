"""Mask secrets in texts that leave this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from detcore._secrets import (
    MASK,
    hide_lines,
    is_secret_key,
    literal_secrets,
    mask_code,
    secret_values,
)

__all__ = ["Redactor"]

_PASSWORD_IN_URL = re.compile(r"://[^/@:\s'\"]*:([^/@\s'\"{}$%]+)@|[?&]sig=([^&\s'\"{}$%]+)")
_SHORTEST_SECRET = 6


class Redactor:
    """Masks the secrets of an experiment and of environment variables in texts.

    Args:
        config: The experiment's configuration, with its secrets.
        variables: Environment variables; those with the name of a secret, and passwords in the
            URLs of all, are secrets.
        code: Source files: strings in them that have the name or the form of a secret are secrets.
    """

    def __init__(
        self, config: Mapping[str, Any], variables: Mapping[str, str], code: Iterable[str] = ()
    ) -> None:
        secrets = {*secret_values(config), *_passwords(_texts(config))}
        secrets |= {value for name, value in variables.items() if is_secret_key(name)}
        secrets |= set(_passwords(variables.values()))
        secrets |= {secret for text in code for secret in literal_secrets(text)}
        # The longest first: a secret may be a part of another one.
        self._secrets = sorted((s for s in secrets if len(s) >= _SHORTEST_SECRET), key=len)[::-1]

    def redact(self, text: str) -> str:
        """Return a text for people with its secrets masked: also values of secret names in it."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return "\n".join(hide_lines(text.split("\n")))

    def redact_code(self, text: str) -> str:
        """Return a source file with known secrets and passwords in URLs masked; it still parses."""
        return mask_code(text, [*self._secrets, *_passwords([text])])


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _passwords(texts: Iterable[str]) -> Iterator[str]:
    """Yield the passwords and signatures of URLs."""
    for text in texts:
        for found in _PASSWORD_IN_URL.finditer(text):
            yield found.group(1) or found.group(2)
