"""Runs that measure, rather than train: strategies compared with each other."""
