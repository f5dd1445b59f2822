"""Spelling of an experiment: names and settings that nothing bears are refused before PyTorch is imported."""
