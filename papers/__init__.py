"""The papers' tables: the published numbers, the settings behind them, and a command that measures them anew."""
