"""What an epsilon is, and what it is not.

An epsilon bounds how much one unit (an example, a patient, a client) can change what one adversary (the server, another
client, an outsider) sees. It holds for every attack, also for those nobody has thought of; but only for that unit and
that adversary, and only as long as clipping, noise and sampling were what the accountant was told. It says nothing of
what follows from all the data together, and it is not measured: a run that leaks more than its epsilon allows has a
false assumption or an error, which `flfw.privacy.lower_bound` can find, and never prove absent.

    mechanism     what was done to the data: clipping, noise, sampling, steps
    accountants   from it an epsilon, and from an epsilon the noise or the rounds
    claims        what may be said of a unit and an adversary, with its assumptions
    canaries      the other side: an epsilon that the run certainly does not keep

Nothing is imported here.
"""
