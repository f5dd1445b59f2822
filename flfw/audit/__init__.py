"""The audit: probes, what the server saw of them, attacks on that, and a verdict."""
