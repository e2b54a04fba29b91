"""Passwords are kept as Argon2 hashes, made over a first hash that old clients send instead."""

from __future__ import annotations

import hashlib

import argon2

# The earlier system's clients send SHA-512 of this and the password, never the password.
_SALT = "GubPEmmotfiK9TMD6Zdw"


def prehash(password: str) -> str:
    """Return the hash that the earlier system's clients send of a password; "" if it is empty."""
    if not password:
        return ""
    return hashlib.sha512((_SALT + password).encode(errors="surrogatepass")).hexdigest()


def hash_password(password: str, *, is_prehashed: bool = False) -> str:
    """Return the hash to store for a password.

    Args:
        password: The password.
        is_prehashed: Whether it is a result of `prehash`.
    """
    return argon2.PasswordHasher().hash(password if is_prehashed else prehash(password))


def is_password(password: str, kept: str | None, *, is_prehashed: bool = False) -> bool:
    """Return whether a password matches a stored hash; False for None, after the same time."""
    hasher = argon2.PasswordHasher()
    costs = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    # No password has this hash.
    unmatched = f"$argon2id$v=19${costs}${'A' * 22}${'A' * 43}"
    try:
        hasher.verify(kept or unmatched, password if is_prehashed else prehash(password))
    except argon2.exceptions.VerificationError:
        return False
    return kept is not None
