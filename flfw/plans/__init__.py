"""Plan of a run: names become classes and settings, and what does not go together is refused."""
