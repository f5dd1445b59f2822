"""iDLG, "Improved Deep Leakage from Gradients": read the label off the gradient, then search for the image.

Paper       Zhao et al., "iDLG: Improved Deep Leakage from Gradients", arXiv 2001.02610.
Labels      for one example under cross entropy, the one class whose last bias gradient is negative: exact.
Minimises   || gradient of (x', label) - observed gradient ||^2 over x', without prior or box,
by          L-BFGS, step size 1, 300 steps of 20 evaluations, from N(0, 1).
Granted     nothing but the observation and the model.
Needs       a network that is twice differentiable everywhere; a shared last layer, with its bias.
Adaptive    a known mechanism stands inside the objective; known local steps are unrolled. The label is read off the
            observation, without the mechanism.
Departures  1. Batches: the paper has single examples. For several, labels are recovered by their counts, which is not
               exact (`flfw.inversion.closed_form.labels`).
            2. Restarts, the end of a search and the box are those of attacks/dlg.py.
"""

from typing import final

from flfw.attacks.dlg import LeastSquares


@final
class IDLG(LeastSquares):
    """Squared distance, with the label read off."""

    @property
    def labels(self) -> str:
        """``recovered``: read off the last layer."""
        return "recovered"
