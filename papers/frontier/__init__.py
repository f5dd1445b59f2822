"""Frontier of differential privacy: accuracy against true epsilon, for every method that claims one.

A table of our own, no paper's. A point is a method, the unit that it protects, an adversary, a data set and an epsilon.

Epsilon     What the project's ledger claims (``privacy`` of result.json) for the unit that the method protects, at
            delta 1e-5, with noise that nobody can repeat: against the server where the method claims something against
            it, else against another client. The noise follows from the wanted epsilon (``target_epsilon``).
Tuning      A few settings (`flfw.papers.frontier.trials`) are run with a seed of their own, and the one with the
            highest accuracy on validation data is run with three other seeds and tested. Validation examples are the
            first, third, ... of the official test part, at every seed; test examples are the others. No test accuracy
            chooses.
Price       The k runs of the choice saw the clients' training examples too. ``with tuning`` is the epsilon of all of
            them and the reported run together: k + 1 releases, composed by the same accountant, none forgotten. Not in
            it: what the choice tells of the validation examples, for which nothing is claimed; the other points of the
            table; and the trials by which the authors of this table found its settings. Liu and Talwar (STOC 2019), and
            Papernot and Steinke (ICLR 2022), have smaller bounds, for a random number of tries.
Papers      The papers' own points: accuracy and epsilon as printed, and the true epsilon of the printed settings by the
            ledger, which is known before a run. Their federations and data differ from this table's.
Federation  100 clients (quick: 40) with a random sample each, none shared: 500 examples (MNIST, Fashion-MNIST), 400
            (CIFAR-10), 300 (Adult). For examples 10 clients are drawn in a round of one step on all their data; for
            clients all take part, and with DP-FTRL each in its turn, a quarter in a round. CENTAUR's and PPSGD's
            accuracy is that of each client with its own head, which never leaves it.
Quick       Epsilons 1 and 8, two settings of a small network a point; 15 rounds for examples, 2 for clients.
Departures  1. Nothing here is a published number, and the full scale is our choice too.
            2. Units differ in what they protect, adversaries in what they see: compare points of one unit only.
            3. Samples are alike from client to client, so that a head of one's own has nothing to gain here.
"""
