"""A federation of real sites: its certificates, keys and commands, and the processes of one machine."""
