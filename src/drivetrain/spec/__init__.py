"""Frozen nouns that the rooms exchange. Imports nothing of drivetrain's, and nothing heavy."""
