"""The tables of the server: users, their tokens, and submitted experiments.

A change here needs a migration, and its name in `detcore_server.plugin`.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from detcore.database import PlainText
from detcore.database import metadata as records

MIGRATIONS = Path(__file__).parent / "migrations"

experiments = records.tables["experiments"]

metadata = MetaData(naming_convention=records.naming_convention)

users = Table(
    "users",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", PlainText, nullable=False),
    # The hash that the server made of the password; NULL: this user cannot log in.
    Column("password_hash", Text),
    Column("is_admin", Boolean, nullable=False),
    Column("is_active", Boolean, nullable=False),
    Column("created_at", Float(53), nullable=False),
    UniqueConstraint("name"),
)

# Tokens that authenticate users: the SHA-256 of each token, never the token.
tokens = Table(
    "tokens",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("user_id", ForeignKey("users.id"), nullable=False, index=True),
    Column("created_at", Float(53), nullable=False),
    Column("expires_at", Float(53), nullable=False, index=True),
)

# The user of each submitted experiment, and the work left for the server.
submissions = Table(
    "submissions",
    metadata,
    Column("experiment_id", ForeignKey(experiments.c.id), primary_key=True, autoincrement=False),
    Column("user_id", ForeignKey("users.id"), nullable=False),
    # Made by the client, so that a repeated submission is recognized.
    Column("submission_id", String(64), nullable=False),
    # A `SubmissionPhase`.
    Column("phase", String(16), nullable=False, index=True),
    Column("test_mode", Boolean, nullable=False),
    Column("created_at", Float(53), nullable=False),
    UniqueConstraint("user_id", "submission_id"),
)
