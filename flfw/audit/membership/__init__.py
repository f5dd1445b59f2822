"""Membership in an audit: the game that an attack plays, and the entries in result.json with what may be concluded."""
