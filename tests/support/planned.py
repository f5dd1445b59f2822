"""Plan of a run, checked as a run checks it, and the parts that an audit takes first."""

from flfw.experiment.audit import AttackSettings
from flfw.plans.combinations import check_audit, check_clients
from flfw.plans.run_plan import AuditPlan, RunPlan
from flfw.task.client_plan import ClientPlan


def checked(run_plan: RunPlan) -> RunPlan:
    """Return a plan whose parts work together.

    Raises:
        InputError: they do not.
    """
    check_audit(run_plan.client, run_plan.audit)
    check_clients(run_plan.client)
    return run_plan


def clients_and_audit(run_plan: RunPlan) -> tuple[ClientPlan, AuditPlan]:
    """Return what an auditor is of."""
    return run_plan.client, run_plan.audit


def clients_and_attacks(run_plan: RunPlan) -> tuple[ClientPlan, AttackSettings]:
    """Return what the grants of an attacker depend on."""
    return run_plan.client, run_plan.audit.settings


def clients_and_adaptation(run_plan: RunPlan) -> tuple[ClientPlan, str]:
    """Return what an attacker may know of the clients' defence, and adapt with."""
    return run_plan.client, run_plan.audit.settings.adaptation
