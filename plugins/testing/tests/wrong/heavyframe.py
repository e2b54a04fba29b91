"""Stands for a framework that takes long to import."""
