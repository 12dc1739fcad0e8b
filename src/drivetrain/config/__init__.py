"""A run file becomes a closed, checked RunConfig. No torch; pydantic and PyYAML are imported on use."""
