"""Clipping and noise in a run, and the privacy claims that follow.

`resolve_noise` sets the noise for a target before a run. `client` (to steps, updates) or `noisy_mean` (at the server)
adds it, `run_accountant` counts it for the claims, `site_ledger` for a site's budget.
"""
