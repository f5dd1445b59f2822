"""Attacks as such: what an adversary saw, the base of attacks, and the searches that several attacks share."""
