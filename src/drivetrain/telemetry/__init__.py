"""What a run writes down while it trains: one event schema, one writer, one reader. Imports nothing heavy."""
