"""Combinations of methods, networks, data, attacks and defences that do not go together, each refused in one line."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flfw import data, nets, plugins
from flfw.adversary.sums import groups_of
from flfw.data.splits import partition
from flfw.errors import InputError, require
from flfw.experiment import AGGREGATE, OUTSIDER, PEER, Experiment
from flfw.messages.sharing import matches
from flfw.nets.malicious_model import ModelModification
from flfw.nets.net import mixes_examples, refuse_tied
from flfw.pipeline import changes_network, refuse_beside_factors, tampering_of
from flfw.plugins import build_settings, short_name, split_assignment
from flfw.resolve import Resolved
from flfw.rng import initialising
from flfw.server import FederatedStrategy
from flfw.server.central import sends_mean, sends_one_model
from flfw.server.robust import RobustMean

_TRIED = 5  # inputs of the trial whether a network mixes them


def check(resolved: Resolved) -> None:
    """Refuse an experiment with unknown plug-ins or fields, before the run starts or writes files.

    Raises:
        InputError: a plug-in or a field is unknown, or a value is out of its range.
    """
    experiment, method, model = resolved.experiment, resolved.method, resolved.model
    _ = resolved.client, resolved.defence, resolved.attacks
    _require_game(resolved)
    if method.factored_upload(resolved.settings) and experiment.defended_partitions:
        refuse_beside_factors(experiment.defence, resolved.defence)
    uploads = resolved.sharing.uploads
    if resolved.defence and experiment.defended_partitions:
        resolved.defence.check_inputs(resolved.input_space[0])
        resolved.defence.check_model(model, uploads)
    if changes_network(experiment) and not resolved.client.batch_loss:
        wanted = f"a method whose local steps follow one loss of a batch with defence={experiment.defence}"
        raise InputError(f"Expected {wanted}, got method={experiment.method}; choose another.")
    if method.uploads and not any(matches(name, uploads) for name, _ in model.named_parameters()):
        shared = ", ".join(method.uploads)
        raise InputError(
            f"Expected a network with {shared} to share, got net={experiment.net} without; choose another."
        )
    if experiment.norm == "group":
        with torch.device("meta"):
            normed = any(isinstance(layer, nn.GroupNorm) for layer in resolved.build_net().modules())
        require(normed, "a network with BatchNorm for --norm group", net=experiment.net)
    refuse_tied(model)
    method.check_model(model, resolved.settings)
    _require_tampering(resolved)
    _require_tokens(resolved)
    _require_scores(resolved)
    _require_separate(resolved)
    _require_numbers(resolved)
    _require_robust(experiment, method)
    _require_turns(experiment, method.min_separation(resolved.settings))
    build_settings(partition.scheme(experiment.split), short_name(experiment.split), experiment.set)
    _refuse_strange_assignments(experiment)


def _require_tampering(resolved: Resolved) -> None:
    """Refuse an attack whose network is not the run's, and a changed network that tells the server nothing."""
    experiment, by = resolved.experiment, resolved.experiment.tampered_by
    for name, attack in resolved.attacks.items():
        changes = f"tampered-by={name} with --attack {name}, whose malicious server changes the network"
        require(name == by or not isinstance(attack, ModelModification), changes, tampered_by=by or "none")
    neither = [name for name in experiment.attacks if name not in resolved.attacks | resolved.membership]
    reading = "attacks that read what clients send; beside --tampered-by, as of"
    require(not neither, f"{reading} {', '.join(neither)}", attack=",".join(neither))
    if by:
        require(not experiment.canaries, "canaries=0 with --tampered-by", canaries=experiment.canaries)
        tampering, both = tampering_of(experiment), (resolved.sharing.downloads, resolved.sharing.uploads)
        touched = [] if tampering is None else tampering.touched(resolved.model)
        shared = all(matches(name, patterns) for name in touched for patterns in both)
        layers = (
            f"a method whose clients download and upload the layers that the server changes, for --tampered-by {by}"
        )
        require(bool(touched) and shared, layers, method=experiment.method)
        if tampering is not None and tampering.isolates is not None:
            _require_isolation(resolved, tampering.isolates)


def _require_isolation(resolved: Resolved, client: int) -> None:
    """Refuse an audit in which no sum is the update of a malicious server's target, or that would not look at one."""
    experiment, by = resolved.experiment, f"with --tampered-by {resolved.experiment.tampered_by}"
    sums = f"--vantage {AGGREGATE} alone {by}, which isolates a client in a sum"
    require(experiment.vantage == (AGGREGATE,), sums, vantage=",".join(experiment.vantage))
    apart = [name for name, attack in resolved.attacks.items() if attack.of_sums or not attack.reconstructs]
    others = [*apart, *resolved.membership]
    require(not others, f"attacks that reconstruct examples from one client's message {by}", attack=",".join(others))
    groups = {size: groups_of(experiment.images, experiment.clients, size) for size in experiment.groups}
    absent = [size for size, sums in groups.items() if all(client not in _owners(one, experiment) for one in sums)]
    require(not absent, f"client {client} in a sum of each size {by}", group=",".join(map(str, absent)))
    steps_follow = any(point.steps > 1 for point in experiment.points)
    decay = getattr(resolved.settings, "weight_decay", 0.0) if steps_follow else 0.0
    steps = f"weight_decay=0 {by} and several local steps, as it moves all clients' weights"
    require(not decay, steps, weight_decay=decay)


def _owners(slots: Sequence[int], experiment: Experiment) -> set[int]:
    return {slot % experiment.clients for slot in slots}


def _require_game(resolved: Resolved) -> None:
    """Refuse an attack on membership without pairs, without a round of training, or on text."""
    experiment = resolved.experiment
    for name, attack in resolved.membership.items():
        pairs = f"membership-pairs auto, all or a number with --attack {name}"
        require(experiment.membership_pairs != "none", pairs, membership_pairs="none")
        trained = f"a round after 0 in --audit-rounds with --attack {name}, which is on what training sends"
        require(any(experiment.audited), trained, audit_rounds=experiment.audit_rounds)
        require(not data.is_at_sites(experiment.dataset), f"data on this machine with --attack {name}", attack=name)
        vocabulary = nets.card(experiment.net).vocabulary
        require(attack.tokens or not vocabulary, f"attacks that read tokens with net={experiment.net}", attack=name)
    if resolved.membership:
        _require_one_model(resolved)


def _require_one_model(resolved: Resolved) -> None:
    """Refuse attacks on membership from sums or from a final model, where the method has no single one."""
    experiment, method = resolved.experiment, resolved.method
    one, whole = (
        sends_one_model(method),
        all(matches(n, resolved.sharing.downloads) for n in resolved.model.state_dict()),
    )
    fits = {AGGREGATE: one, PEER: sends_mean(method, experiment), OUTSIDER: one and whole}
    needed = {
        AGGREGATE: "sends all clients of a round the same tensors",
        PEER: "sends all clients the mean of the last round's weights",
        OUTSIDER: "ends with one whole model",
    }
    for vantage in (one for one in needed if one in experiment.vantage):
        wanted = f"a method that {needed[vantage]}, for membership at --vantage {vantage}"
        require(fits[vantage], wanted, method=experiment.method)


def refuse_membership(resolved: Resolved, where: str) -> None:
    """Refuse attacks on membership where only reconstructions are counted.

    Args:
        resolved: the experiment.
        where: the place in words, such as ``in a matrix``.
    """
    for name in resolved.membership:
        require(False, f"attacks that reconstruct examples {where}, which plays no game of membership", attack=name)


def _require_tokens(resolved: Resolved) -> None:
    """Refuse a network for text on other data, and, as tokens have no gradient, attacks and defences that need one."""
    experiment, card = resolved.experiment, nets.card(resolved.experiment.net)
    vocabulary = card.vocabulary
    if not vocabulary:  # a user's own network may look tokens up as well: nothing is known of it here
        return
    name, net = experiment.dataset, f"for net={experiment.net}"
    held = data.describe(name).vocabulary
    require(held == vocabulary, f"text of {vocabulary} tokens {net}, such as text:FILE", dataset=name)
    if card.places:
        plain = data.describe(name).classes == vocabulary
        require(plain, f"text without labels {net}, which learns the next token of every place", dataset=name)
        method = f"a method whose local steps follow the loss of the whole network {net}"
        require(resolved.client.place_labels, method, method=experiment.method)
    for one, attack in resolved.attacks.items():
        require(attack.tokens, f"attacks that read tokens {net}", attack=one)
    for stage in resolved.stages:
        wanted = f"a defence without derivatives in the inputs, which are tokens, {net}"
        require(not stage.kind.differentiates_inputs, wanted, defence=stage.name)


def _require_scores(resolved: Resolved) -> None:
    """Refuse a user's own network, which has no card, whose scores fit neither the labels nor the places of a text.

    Scores of three dimensions are those of the next token at every place: other labels would be taken for tokens.
    """
    experiment, card = resolved.experiment, nets.card(resolved.experiment.net)
    if ":" not in experiment.net or card.architecture is not None:
        return
    (shape, classes), name, held = resolved.input_space, experiment.net, data.describe(experiment.dataset)
    try:
        with torch.no_grad(), initialising(experiment.seed, "trial"):
            scores = resolved.build_net(name).eval()(torch.zeros(1, *shape))
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
    require(resolved.client.place_labels, method, method=experiment.method)


def _require_separate(resolved: Resolved) -> None:
    """Refuse a user's own network that mixes the examples of a batch, where each one's gradient is clipped.

    One example would change the gradients of others, which no bound on its own covers; so with private metrics.
    """
    experiment = resolved.experiment
    if ":" not in experiment.net or not getattr(resolved.settings, "on_steps", False):
        return
    modes = (True, False) if experiment.metrics == "private" else (True,)
    with initialising(experiment.seed, "trial"):
        model, x = resolved.build_model(), torch.rand(_TRIED, *resolved.input_space[0])
        mixed = any(mixes_examples(model, x, training) for training in modes)
    on = f"a network that computes each example's scores from that example alone, for method={experiment.method}"
    require(not mixed, f"{on}, which clips single examples", net=experiment.net)


def _require_numbers(resolved: Resolved) -> None:
    """Refuse the regression of a table with a part that needs classes."""
    experiment, card = resolved.experiment, data.describe(resolved.experiment.dataset)
    if not card.numbers:
        return
    on = f"for the regression of {card.columns.target if card.columns else experiment.dataset}"
    clients = f"a method whose clients follow the squared error {on}, such as fedavg, fedprox, scaffold or fed_cdp"
    require(not refuses_numbers(resolved), clients, method=experiment.method)
    for name, attack in {**resolved.attacks, **resolved.membership}.items():
        fit = f"attacks that need no classes {on}, such as analytic, tableak or membership"
        require(attack.numbers, fit, attack=name)
        labels = getattr(attack, "labels", "given")
        read_off = f"{name}.labels=given {on}, as classes alone can be read off"
        require(labels in ("given", "not used"), read_off, labels=labels)
    differentiable = [stage.name for stage in resolved.stages if "network" in stage.active_hooks]
    require(not differentiable, f"a defence that leaves the network as it is {on}", defence=",".join(differentiable))
    cut = f"a split that needs no classes {on}: iid, everything, whole, sampled or drawn"
    require(experiment.split in ("iid", "everything", "whole", "sampled", "drawn"), cut, split=experiment.split)
    require(
        experiment.metrics != "private", f"--metrics all or none {on}, whose errors have no bound", metrics="private"
    )


def refuses_numbers(resolved: Resolved) -> bool:
    """Return whether the data set is a regression, and the method one that needs classes."""
    numbers = data.describe(resolved.experiment.dataset).numbers
    return numbers and (resolved.method.needs_classes or not resolved.client.regresses)


def _require_robust(experiment: Experiment, method: type[FederatedStrategy]) -> None:
    """Refuse a robust mean where the server takes no mean, or where a round is too small for it."""
    if experiment.robust == "none":
        return
    averaging = f"a method whose server takes the mean of updates with --robust {experiment.robust}"
    require(method.averaged, averaging, method=experiment.method)
    fewest = RobustMean(experiment.robust, experiment.byzantine_clients).fewest
    rounds = f"{fewest} clients or more in a round, with byzantine-clients={experiment.byzantine_clients}"
    require(experiment.per_round >= fewest, f"{rounds} and --robust {experiment.robust}", clients=experiment.per_round)


def _require_turns(experiment: Experiment, apart: int) -> None:
    """Refuse fewer clients than turns, and cohorts that a turn may not fill."""
    clients, turns = experiment.clients, f"method={experiment.method}, whose clients take turns of {apart} rounds"
    require(clients >= apart, f"clients >= {apart} for {turns}", clients=clients)
    most = clients // apart
    require(experiment.sample <= most or apart == 1, f"sample <= {most} for {turns}", sample=experiment.sample)


def _refuse_strange_assignments(experiment: Experiment) -> None:
    """Refuse ``--set`` for a plug-in that this run does not use."""
    pretrained = [experiment.net] * (nets.card(experiment.net).architecture is not None)
    table = [experiment.dataset.partition(":")[0]] if data.is_table(experiment.dataset) else []
    others = [experiment.split, *table, *pretrained, *experiment.attacks, *experiment.defences]
    present = {plugins.short_name(name) for name in (experiment.method, *others, experiment.tampered_by) if name}
    for assignment in experiment.set:
        target = split_assignment(assignment)[0]
        plugin = target.rpartition(".")[0]
        if plugin and plugin not in present:
            raise InputError(
                f"Expected --set for a plug-in of this run among {', '.join(sorted(present))}; got {target}."
            )
