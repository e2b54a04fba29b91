"""Prove on both ends the knowledge of the job's key, before decoding data from the other end.

Every message has a fixed length. Until the proof is verified, messages are compared and not parsed:

1. listener -> caller: 32 random bytes
2. caller -> listener: rank, size, purpose, 32 random bytes, HMAC of all this under the key
3. listener -> caller: a verdict, HMAC of all this under the key

Both nonces are new for each connection, so a recorded proof is worthless. The proof covers rank and
purpose. The keys for the checksums of the connection are derived from the same values.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from typing import NamedTuple

NONCE_SIZE = 32
_CLAIM = struct.Struct("!III32s")
_PROOF_SIZE = 32
CALLER_SIZE = _CLAIM.size + _PROOF_SIZE
LISTENER_SIZE = 1 + _PROOF_SIZE
CALLS, QUESTIONS = 0, 1  # purpose of a connection: collectives, or requests for the current line
ACCEPTED, TAKEN, OTHER_SIZE, OUTSIDE = 0, 1, 2, 3
VERDICTS = {
    TAKEN: "another process has joined with the same rank",
    OTHER_SIZE: "the listening rank expects a different number of workers",
    OUTSIDE: "the rank is outside of the group, or the purpose of the connection is unknown",
}


def new_nonce() -> bytes:
    """Return random bytes for one connection."""
    return secrets.token_bytes(NONCE_SIZE)


class Claim(NamedTuple):
    """A caller's statement about itself."""

    rank: int
    size: int
    challenge: bytes
    nonce: bytes
    purpose: int = CALLS

    def encode_claim(self, key: bytes) -> bytes:
        """Return the message of step 2, with its proof."""
        claim = _CLAIM.pack(self.rank, self.size, self.purpose, self.nonce)
        return claim + self._compute_proof(key, b"caller")

    def encode_verdict(self, key: bytes, verdict: int) -> bytes:
        """Return the message of step 3, with its proof."""
        return bytes([verdict]) + self._compute_proof(key, b"listener", bytes([verdict]))

    def read_verdict(self, key: bytes, message: bytes) -> int | None:
        """Return the verdict in the message of step 3, or None if the proof is invalid."""
        expected = self.encode_verdict(key, message[0])
        return message[0] if hmac.compare_digest(expected, message) else None

    def derive_session_keys(self, key: bytes) -> tuple[bytes, bytes]:
        """Return the keys for data from the caller, and for data from the listener."""
        return self._compute_proof(key, b"from caller"), self._compute_proof(key, b"from listener")

    def _compute_proof(self, key: bytes, purpose: bytes, more: bytes = b"") -> bytes:
        claim = _CLAIM.pack(self.rank, self.size, self.purpose, self.nonce)
        parts = b"|".join([b"detcore-2", purpose, self.challenge, claim, more])
        return hmac.digest(key, parts, hashlib.sha256)


def read_claim(key: bytes, challenge: bytes, message: bytes) -> Claim | None:
    """Return the caller's claim, or None if the proof is invalid."""
    rank, size, purpose, nonce = _CLAIM.unpack(message[: _CLAIM.size])
    claim = Claim(rank, size, challenge, nonce, purpose)
    return claim if hmac.compare_digest(claim.encode_claim(key), message) else None
