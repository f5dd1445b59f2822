"""Federation of real sites: its certificates, keys and commands, and its processes on one machine."""
