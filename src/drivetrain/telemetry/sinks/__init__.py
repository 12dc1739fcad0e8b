"""Where scalars go beside the events: one module a sink, imported on use (see `table.py`)."""
