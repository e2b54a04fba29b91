"""The form in which labels and notes are written, of an experiment and of a trial."""

from __future__ import annotations

from typing import Annotated

from fastapi import Form
from pydantic import BaseModel, Field


class _Description(BaseModel):
    labels: Annotated[str, Field(max_length=10_000)] = ""
    notes: Annotated[str, Field(max_length=100_000)] = ""

    def label_list(self) -> list[str]:
        """Return the labels, each once."""
        texts = (text.strip() for text in self.labels.split(","))
        return list(dict.fromkeys(text for text in texts if text))

    def plain_notes(self) -> str:
        """Return the notes with the line ends of Unix."""
        return self.notes.replace("\r\n", "\n").strip()


DescriptionForm = Annotated[_Description, Form()]
