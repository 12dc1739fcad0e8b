"""The engine: strategies, precision, the step, the control word, checkpoints."""
