"""Verification of a result: the run is repeated, and each of its numbers is compared with the new one."""
