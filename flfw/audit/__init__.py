"""The audit: probes, the messages that the server saw of them, attacks on these, and a verdict.

``flfw.audit(...)`` calls `flfw.command.api.audit`.
"""

import sys

from flfw import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
