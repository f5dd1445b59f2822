"""Local steps on named tensors: optimisers, low rank, per-example gradients, noise, pruning."""
