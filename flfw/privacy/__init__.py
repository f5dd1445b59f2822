"""Privacy accounting: the meaning of an epsilon, and its limits.

An epsilon bounds how much one unit (an example, a patient, a client) can change the view of one adversary (the server,
one that sees sums of updates alone, another client, an outsider). It holds for every attack, known or unknown; but only
for that unit and that adversary, and only if clipping, noise and sampling were as given to the accountant. It does not
cover conclusions from all the data together, and it is not measured. A run that leaks more than its epsilon allows has
a false assumption or an error: `flfw.privacy.lower_bound` can detect this, but cannot prove its absence.

    mechanism     the noisy mechanism of a client: clipping, noise, sampling, steps; its schedule; and other clients
    accountants   epsilon of a mechanism
    calibration   noise for a given epsilon
    claims        claims for a unit and an adversary, with their assumptions, also for a unit that is not clipped
    lower_bound   lower bounds: an epsilon that the run does not keep, from canaries

Nothing is imported here.
"""
