"""Passwords are kept as Argon2 hashes, made over a first hash that old clients send instead."""

from __future__ import annotations

import hashlib

import argon2

__all__ = ["hash_password", "is_password", "prehash"]

# The earlier system's clients send SHA-512 of this and the password, never the password.
_SALT = "GubPEmmotfiK9TMD6Zdw"
# Of no password that anybody knows.
_NOBODY = argon2.PasswordHasher().hash("nobody's")


def prehash(password: str) -> str:
    """Return what the earlier system's clients send of a password; nothing of an empty one."""
    if not password:
        return ""
    return hashlib.sha512((_SALT + password).encode(errors="surrogatepass")).hexdigest()


def hash_password(password: str, *, is_prehashed: bool = False) -> str:
    """Return what is kept of a password.

    Args:
        password: The password.
        is_prehashed: Whether it is what `prehash` made of one.
    """
    return argon2.PasswordHasher().hash(password if is_prehashed else prehash(password))


def is_password(password: str, kept: str | None, *, is_prehashed: bool = False) -> bool:
    """Whether a password is the one that was kept; False where None was, after as long."""
    try:
        argon2.PasswordHasher().verify(
            kept or _NOBODY, password if is_prehashed else prehash(password)
        )
    except argon2.exceptions.VerificationError:
        return False
    return kept is not None
