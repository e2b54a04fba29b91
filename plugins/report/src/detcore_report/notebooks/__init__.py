"""Support for notebooks: objects as HTML, and trial classes from cells."""
