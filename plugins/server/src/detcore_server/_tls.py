"""The TLS certificate of a server."""

from __future__ import annotations

import ssl
from pathlib import Path

from detcore.errors import ConfigError

__all__ = ["check_certificate"]


def check_certificate(certificate: Path, key: Path) -> None:
    """Check that a server can use a certificate.

    Args:
        certificate: File of the chain (PEM), the server's own certificate first.
        key: File of the private key (PEM).

    Raises:
        ConfigError: If it cannot, with the reason.
    """
    for option, path in (("--certificate", certificate), ("--key", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"the file {path} of {option} cannot be read: {error.strerror}.\n"
                "The user that runs the server must be able to read it."
            ) from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except ssl.SSLError as error:
        raise ConfigError(_reason(error, certificate, key)) from error


def _no_password() -> str:
    # Without it OpenSSL would ask on the terminal.
    raise ConfigError(
        "the private key of --key is encrypted, and a server has nobody to ask for the password.\n"
        "Write it without one, in a file that only the server's user can read: "
        "openssl pkey -in KEY -out PLAIN_KEY"
    )


def _reason(error: ssl.SSLError, certificate: Path, key: Path) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"the private key {key} is not the one of the certificate {certificate}.\n"
            "Give the two that were made together; in a chain the server's own certificate is the "
            "first one."
        )
    return (
        f"the certificate {certificate} and the private key {key} cannot be used: "
        f"{error.reason or error}.\n"
        "Both must be PEM files, the certificate with -----BEGIN CERTIFICATE----- and the key with "
        "-----BEGIN PRIVATE KEY----- (or RSA, or EC PRIVATE KEY)."
    )
