"""Train uninterrupted and with kills, and compare both results, for ``detcore check-resume``."""
