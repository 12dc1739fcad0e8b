"""How this machine's GPUs are wired, and which of them to take: sources, graph, link table, placement."""
