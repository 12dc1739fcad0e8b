"""Checkpoints: torch DCP files, checked by sums, complete or not there at all."""
