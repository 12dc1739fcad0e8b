"""Pure functions from a node's facts to findings, by area."""
