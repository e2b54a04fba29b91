"""Define the settings of the launcher ``local`` in an experiment file: it has none."""

from __future__ import annotations

from pydantic import BaseModel


class LocalSettings(BaseModel):
    """Starts workers as processes of this machine."""
