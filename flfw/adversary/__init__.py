"""Base of the attacks: observations, knowledge, and the searches that attacks share."""
