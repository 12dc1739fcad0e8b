"""Parsers for what users paste: each reads its own kind of block out of any text, and guesses nothing."""
