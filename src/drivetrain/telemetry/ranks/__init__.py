"""What is measured inside a rank; may import torch."""
