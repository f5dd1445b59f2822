"""Combinations of methods, networks, data, attacks and defences that do not go together, each refused in one line."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flfw import data, nets, plugins
from flfw.adversary.sums import groups_of
from flfw.errors import InputError, require
from flfw.experiment import AGGREGATE, OUTSIDER, PEER
from flfw.experiment.training import RoundSettings
from flfw.files.tensor_names import matches
from flfw.nets.malicious_model import ModelModification
from flfw.nets.net import losses, mixes_examples, refuse_tied
from flfw.nets.training.per_example import PerExample
from flfw.plans.run_plan import AuditPlan
from flfw.plugins import split_assignment
from flfw.rng import initialising
from flfw.server.central import sends_mean, sends_one_model
from flfw.server.robust import RobustMean
from flfw.task.client_plan import ClientPlan
from flfw.task.defence import HOOKS
from flfw.task.method import Method
from flfw.task.pipeline import refuse_beside_factors

_TRIED, _LARGEST = (2, 5, 8), 64  # inputs of the trials whether a network mixes them; those of a batch, up to these


def check_clients(plan: ClientPlan) -> None:
    """Refuse a run whose clients cannot work as asked, before it starts or writes files.

    Raises:
        InputError: a plug-in or a field is unknown, or a value is out of its range.
    """
    method, model, settings, network = plan.method, plan.model, plan.settings, plan.task.network
    defence = plan.defence if plan.defences.partitions else None
    if method.factored_upload(settings):
        refuse_beside_factors(plan.defences.name, defence)
    uploads = plan.sharing.uploads
    for name in model.state_dict():
        if matches(name, uploads) and not matches(name, plan.sharing.downloads):
            raise InputError(f"Expected uploads that {plan.name} also downloads, got {name}; add it to its downloads.")
    if idle := [stage.name for stage in plan.defences.stages if not stage.active_hooks]:
        raise InputError(f"Expected a defence that overrides one of {', '.join(HOOKS)}, got {idle[0]}.")
    if defence:
        defence.check_inputs(plan.task.input_space[0])
        defence.check_model(model, uploads)
    if plan.defences.changes_network and not plan.client_class.batch_loss:
        required = f"a method whose local steps follow one loss of a batch with defence={plan.defences.name}"
        raise InputError(f"Expected {required}, got method={plan.name}; choose another.")
    if method.uploads and not any(matches(name, uploads) for name, _ in model.named_parameters()):
        shared = ", ".join(method.uploads)
        raise InputError(f"Expected a network with {shared} to share, got net={network.name} without; choose another.")
    if network.norm == "group":
        with torch.device("meta"):
            normed = any(isinstance(layer, nn.GroupNorm) for layer in plan.task.build_net().modules())
        require(normed, "a network with BatchNorm for --expert norm=group", net=network.name)
    refuse_tied(model)
    method.check_model(model, settings)
    _require_tampering(plan)
    _require_tokens(plan)
    _require_scores(plan)
    _require_separate(plan)
    _require_numbers(plan)
    _require_robust(plan.rounds, plan.name, method)
    _require_turns(plan.rounds, plan.name, method.min_separation(settings))
    _ = plan.task.scheme


def check_audit(plan: ClientPlan, audit: AuditPlan) -> None:
    """Refuse attacks that do not fit the run.

    Raises:
        InputError: an attack or a field is unknown, or an attack does not fit the method, the network or the data.
    """
    _require_game(plan, audit)
    _require_network_of(plan, audit)
    _require_attacks_on_tokens(plan, audit)
    _require_attacks_on_numbers(plan, audit)
    _refuse_strange_assignments(plan, audit)


def _require_network_of(plan: ClientPlan, audit: AuditPlan) -> None:
    """Refuse an attack whose network is not the run's, and one that does not read what clients send."""
    by, reconstructions = plan.task.network.malicious_name, audit.reconstructions
    for name, attack in reconstructions.items():
        changes = f"malicious-server={name} with --attack {name}, whose malicious server changes the network"
        require(name == by or not isinstance(attack, ModelModification), changes, malicious_server=by or "none")
    neither = [name for name in audit.settings.attacks if name not in reconstructions | audit.memberships]
    reading = "attacks that read what clients send; beside --malicious-server, as of"
    require(not neither, f"{reading} {', '.join(neither)}", attack=",".join(neither))
    isolated = plan.task.network.isolated_client
    if isolated is not None:
        _require_isolation(plan, audit, isolated)


def _require_tampering(plan: ClientPlan) -> None:
    """Refuse a malicious server's network that tells it nothing."""
    malicious, by = plan.task.network.malicious, plan.task.network.malicious_name
    if malicious is None:
        return
    canaries = plan.privacy.canaries
    require(not canaries, "canaries=0 with --malicious-server", canaries=canaries)
    touched, both = malicious.touched(plan.model), (plan.sharing.downloads, plan.sharing.uploads)
    shared = all(matches(name, patterns) for name in touched for patterns in both)
    layers = (
        f"a method whose clients download and upload the layers that the server changes, for --malicious-server {by}"
    )
    require(bool(touched) and shared, layers, method=plan.name)


def _require_isolation(plan: ClientPlan, audit: AuditPlan, client: int) -> None:
    """Refuse an audit in which no sum is the update of a malicious server's target, or that would not look at one."""
    probes = audit.probes
    everyone = plan.rounds.clients
    by = f"with --malicious-server {plan.task.network.malicious_name}"
    sums = f"--vantage {AGGREGATE} alone {by}, which isolates a client in a sum"
    require(probes.vantage == (AGGREGATE,), sums, vantage=",".join(probes.vantage))
    apart = [name for name, attack in audit.reconstructions.items() if attack.of_sums or not attack.reconstructs]
    others = [*apart, *audit.memberships]
    require(not others, f"attacks that reconstruct examples from one client's message {by}", attack=",".join(others))
    groups = {size: groups_of(probes.images, everyone, size) for size in audit.sum_sizes}
    absent = [
        size for size, sums in groups.items() if all(client not in {slot % everyone for slot in one} for one in sums)
    ]
    require(not absent, f"client {client} in a sum of each size {by}", sum_size=",".join(map(str, absent)))
    steps_follow = any(point.steps > 1 for point in probes.points)
    decay = getattr(plan.settings, "weight_decay", 0.0) if steps_follow else 0.0
    steps = f"weight_decay=0 {by} and several local steps, as it moves all clients' weights"
    require(not decay, steps, weight_decay=decay)


def _require_game(plan: ClientPlan, audit: AuditPlan) -> None:
    """Refuse an attack on membership without pairs, without a round of training, or on text."""
    dataset, network = plan.task.data.dataset, plan.task.network.name
    for name, attack in audit.memberships.items():
        pairs = f"membership-pairs auto, all or a number with --attack {name}"
        require(audit.probes.membership_pairs != "none", pairs, membership_pairs="none")
        trained = f"a round after 0 in --audit-rounds with --attack {name}, which is on what training sends"
        require(any(audit.audited), trained, audit_rounds=audit.probes.audit_rounds)
        require(not data.is_at_sites(dataset), f"data on this machine with --attack {name}", attack=name)
        vocabulary = nets.card(network).vocabulary
        require(attack.tokens or not vocabulary, f"attacks that read tokens with net={network}", attack=name)
    if audit.memberships:
        _require_one_model(plan, audit.probes.vantage)


def _require_one_model(plan: ClientPlan, vantages: Sequence[str]) -> None:
    """Refuse attacks on membership from sums or from a final model, where the method has no single one."""
    one = sends_one_model(plan.method)
    full = all(matches(name, plan.sharing.downloads) for name in plan.model.state_dict())
    mean = sends_mean(plan.method, plan.rounds.robust_rule, plan.task.network.malicious)
    fits = {AGGREGATE: one, PEER: mean, OUTSIDER: one and full}
    needed = {
        AGGREGATE: "sends all clients of a round the same tensors",
        PEER: "sends all clients the mean of the last round's weights",
        OUTSIDER: "ends with one whole model",
    }
    for vantage in (one for one in needed if one in vantages):
        required = f"a method that {needed[vantage]}, for membership at --vantage {vantage}"
        require(fits[vantage], required, method=plan.name)


def refuse_membership(audit: AuditPlan, where: str) -> None:
    """Refuse attacks on membership where only reconstructions are counted.

    Args:
        audit: the attacks.
        where: the place in words, such as ``in a matrix``.
    """
    for name in audit.memberships:
        require(False, f"attacks that reconstruct examples {where}, which plays no game of membership", attack=name)


def _require_tokens(plan: ClientPlan) -> None:
    """Refuse a network for text on other data, and, as tokens have no gradient, defences that need one."""
    network, name = plan.task.network.name, plan.task.data.dataset
    card = nets.card(network)
    vocabulary = card.vocabulary
    if not vocabulary:  # a user's own network may look tokens up as well: nothing is known of it here
        return
    net = f"for net={network}"
    held = data.describe(name).vocabulary
    require(held == vocabulary, f"text of {vocabulary} tokens {net}, such as text:FILE", dataset=name)
    if card.places:
        plain = data.describe(name).classes == vocabulary
        require(plain, f"text without labels {net}, which learns the next token of every place", dataset=name)
        method = f"a method whose local steps follow the loss of the whole network {net}"
        require(plan.client_class.place_labels, method, method=plan.name)
    for stage in plan.defences.stages:
        required = f"a defence without derivatives in the inputs, which are tokens, {net}"
        require(not stage.kind.differentiates_inputs, required, defence=stage.name)


def _require_attacks_on_tokens(plan: ClientPlan, audit: AuditPlan) -> None:
    """Refuse attacks that need a gradient in the inputs, where these are tokens."""
    network = plan.task.network.name
    for name, attack in audit.reconstructions.items() if nets.card(network).vocabulary else ():
        require(attack.tokens, f"attacks that read tokens for net={network}", attack=name)


def _require_scores(plan: ClientPlan) -> None:
    """Refuse a user's own network, which has no card, whose scores fit neither the labels nor the places of a text.

    Scores of three dimensions are those of the next token at every place: other labels would be taken for tokens.
    """
    name, dataset = plan.task.network.name, plan.task.data.dataset
    if ":" not in name or nets.card(name).architecture is not None:
        return
    (shape, classes), held = plan.task.input_space, data.describe(dataset)
    try:
        with torch.no_grad(), initialising(plan.seed, "trial"):
            scores = plan.task.build_net(name).eval()(torch.zeros(1, *shape))
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"Expected net={name} to take inputs of shape {shape}, got: {why}") from error
    got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if isinstance(scores, Tensor) and scores.dim() == 2 and scores.shape[1] >= classes:
        return
    next_token = held.vocabulary == classes
    places = f" or, of a text without labels, (1, {held.vocabulary}, {shape[0]})" if next_token else ""
    if not next_token or got != (1, held.vocabulary, *shape):
        what = "" if next_token or not held.vocabulary else " of labelled text"
        raise InputError(f"Expected net={name} to give scores (1, {classes}){places} for an input{what}, got {got}.")
    method = f"a method whose local steps follow the loss of the whole network for net={name}, which scores every place"
    require(plan.client_class.place_labels, method, method=plan.name)


def _require_separate(plan: ClientPlan) -> None:
    """Refuse a user's own network that mixes the examples of a batch, where each one's gradient is clipped.

    One example would change the gradients of others, which no bound on its own covers; so with private metrics. Layers
    that are not called with tensors alone are refused as well.
    """
    network = plan.task.network.name
    if ":" not in network or not getattr(plan.settings, "clips_examples", False):
        return
    modes = (True, False) if plan.privacy.metrics == "private" else (True,)
    with initialising(plan.seed, "trial"):
        model, shape = plan.build_model(), plan.task.input_space[0]
        sizes = sorted({*_TRIED, min(plan.local.batch_size or _LARGEST, _LARGEST)})
        mixed = any(mixes_examples(model, torch.rand(size, *shape), mode) for size in sizes for mode in modes)
        on = f"a network that computes each example's scores from that example alone, for method={plan.name}"
        require(not mixed, f"{on}, which clips single examples", net=network)
        x, y = torch.rand(2, *shape), torch.zeros(2, dtype=torch.float32 if _regression(plan) else torch.int64)
        PerExample(model, plan.sharing.uploads).clipped_sum(lambda: losses(model(x), x, y), 1.0)


def _require_numbers(plan: ClientPlan) -> None:
    """Refuse the regression of a table with a part that needs classes."""
    if not (on := _regression(plan)):
        return
    clients = f"a method whose clients follow the squared error {on}, such as fedavg, fedprox, scaffold or fed_cdp"
    require(not refuses_numbers(plan), clients, method=plan.name)
    differentiable = [stage.name for stage in plan.defences.stages if "network" in stage.active_hooks]
    require(not differentiable, f"a defence that leaves the network as it is {on}", defence=",".join(differentiable))
    split = plan.task.data.split
    cut = f"a split that needs no classes {on}: iid, full_copy, dataset_per_client, sampled or sampled_on_demand"
    require(split in ("iid", "full_copy", "dataset_per_client", "sampled", "sampled_on_demand"), cut, split=split)
    errors = f"--metrics all or none {on}, whose errors have no bound"
    require(plan.privacy.metrics != "private", errors, metrics="private")


def _require_attacks_on_numbers(plan: ClientPlan, audit: AuditPlan) -> None:
    """Refuse attacks that need classes on the regression of a table."""
    if not (on := _regression(plan)):
        return
    for name, attack in {**audit.reconstructions, **audit.memberships}.items():
        fit = f"attacks that need no classes {on}, such as analytic, tableak or membership"
        require(attack.numbers, fit, attack=name)
        labels = getattr(attack, "labels", "given")
        read_off = f"{name}.labels=given {on}, as classes alone can be read off"
        require(labels in ("given", "not used"), read_off, labels=labels)


def _regression(plan: ClientPlan) -> str:
    """Return in words that the data are a regression; empty: they have classes."""
    dataset = plan.task.data.dataset
    card = data.describe(dataset)
    return f"for the regression of {card.columns.target if card.columns else dataset}" if card.numbers else ""


def refuses_numbers(plan: ClientPlan) -> bool:
    """Return whether the data set is a regression, and the method one that needs classes."""
    return bool(_regression(plan)) and (plan.method.needs_classes or not plan.client_class.regresses)


def _require_robust(rounds: RoundSettings, name: str, method: type[Method]) -> None:
    """Refuse a robust mean where the server takes no mean, or where a round is too small for it."""
    if rounds.robust_rule == "none":
        return
    averaging = f"a method whose server takes the mean of updates with --expert robust={rounds.robust}"
    require(method.averaged, averaging, method=name)
    fewest = RobustMean(rounds.robust_rule, rounds.byzantine_clients).fewest
    enough = f"{fewest} clients or more in a round, with --expert robust={rounds.robust}"
    require(rounds.per_round >= fewest, enough, clients=rounds.per_round)


def _require_turns(rounds: RoundSettings, method: str, separation: int) -> None:
    """Refuse fewer clients than turns, and cohorts that a turn may not fill."""
    clients, turns = rounds.clients, f"method={method}, whose clients take turns of {separation} rounds"
    require(clients >= separation, f"clients >= {separation} for {turns}", clients=clients)
    maximum = clients // separation
    require(rounds.sample <= maximum or separation == 1, f"sample <= {maximum} for {turns}", sample=rounds.sample)


def _refuse_strange_assignments(plan: ClientPlan, audit: AuditPlan) -> None:
    """Refuse ``--set`` for a plug-in that this run does not use."""
    network, dataset = plan.task.network, plan.task.data.dataset
    pretrained = [network.name] * (nets.card(network.name).architecture is not None)
    table = [dataset.partition(":")[0]] if data.is_table(dataset) else []
    defences = [stage.name for stage in plan.defences.stages]
    others = [plan.task.data.split, *table, *pretrained, *audit.settings.attacks, *defences]
    present = {plugins.short_name(name) for name in (plan.name, *others, network.malicious_name) if name}
    for assignment in plan.task.assignments:
        target = split_assignment(assignment)[0]
        plugin = target.rpartition(".")[0]
        if plugin and plugin not in present:
            raise InputError(
                f"Expected --set for a plug-in of this run among {', '.join(sorted(present))}; got {target}."
            )
