"""Checks before a run: is this machine right, and by which command is it repaired."""
