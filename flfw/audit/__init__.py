"""The audit: probes, the messages that the server saw of them, attacks on these, and a verdict."""
