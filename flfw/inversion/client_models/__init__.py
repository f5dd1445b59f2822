"""Models of a client that an attacker can compute."""
