"""What is here: CPUs, memory and GPUs that this process may really use. No torch."""
