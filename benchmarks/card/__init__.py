"""What `benchmarks/gpu.py` tries on a GPU: a module for each part, and the machinery that keeps them within minutes."""
