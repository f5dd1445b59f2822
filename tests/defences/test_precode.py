"""PRECODE: a round against a loop, a network that both sides build, and an attacker who computes the noise."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.attacks.adaptations.precode import PrecodeAdaptation
from flfw.attacks.adaptations.soteria import SoteriaAdaptation
from flfw.audit.adaptation import protection_of
from flfw.audit.controls import UNDEFENDED, WEAK_DEFENCE, undefended, under_control
from flfw.audit.jobs import ProbeSet
from flfw.client import FederatedClient
from flfw.clients.defences.precode import Precode, PrecodeSettings
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.inversion.client_models.operator import fitted
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.matching import cosine_distance
from flfw.inversion.priors import total_variation, weighted
from flfw.inversion.search import SearchConfig, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets import Net, Tensors, tensors
from flfw.nets.bottleneck import bottlenecks, penalty
from flfw.nets.inputs import InputSpec
from flfw.nets.training.local_steps import LocalSteps
from flfw.plans.run_plan import plan, without_auto
from flfw.rng import initialising, torch_generator
from flfw.runs.run import run
from tests.support.method_rounds import make_client
from tests.support.planned import checked, clients_and_adaptation


def asked(**changes: object) -> Experiment:
    chosen: dict[str, object] = {"method": "fedavg", "net": "lenet", "clients": 2, "defence": "precode"} | changes
    return without_auto(Experiment(**{"dataset": "digits", "attack": ("none",), **chosen}))  # type: ignore[arg-type]


def client_of(experiment: Experiment, folder: Path, partition: int = 0) -> FederatedClient:
    ctx = replace(
        make_client(experiment, partition, folder).ctx, defence=plan(experiment).client.defences.of_client(partition)
    )
    return plan(experiment).client_class(ctx)


# --- clients ---


def test_a_round_equals_a_loop_with_the_divergence_in_its_loss(tmp_path: Path) -> None:
    experiment = asked(
        local_epochs=2, batch_size=300, lr=0.1, set=("momentum=0", "weight_decay=0", "precode.beta=0.05")
    )
    client = client_of(experiment, tmp_path)
    start = {name: value.clone() for name, value in client.model.state_dict().items()}
    uploads, _ = client.fit_named({name: value.numpy().copy() for name, value in start.items()}, version=0)
    looped = client_of(experiment, tmp_path)
    net = looped.model.train()
    (bottleneck,) = bottlenecks(net)
    rng, mine = looped.generator("batches"), looped.indices("train")
    for _ in range(2):
        order = mine[torch.randperm(len(mine), generator=rng).numpy()]
        for at in range(0, len(order), 300):
            x, y = plan(experiment).task.load(None).examples("train", order[at : at + 300], rng)
            h = net.extractor(looped.ctx.task.inputs.normalise(x))
            mean, raw = bottleneck.encoder(h).chunk(2, 1)
            s = torch.nn.functional.softplus(raw)
            z = mean + s * torch.randn(mean.shape, generator=rng)
            bits = (mean**2 + s**2 - torch.log(s**2) - 1).sum(1).mean() / (2 * torch.log(torch.tensor(2.0)))
            loss = cross_entropy(net.get_submodule("classifier.layer")(bottleneck.decoder(z)), y) + 0.05 * bits
            net.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.1 * parameter.grad  # type: ignore[operator]
    torch.testing.assert_close(uploads, dict(net.state_dict()), rtol=1e-4, atol=1e-6)


def test_all_clients_have_the_network_and_only_defended_ones_draw(tmp_path: Path) -> None:
    experiment = asked(defended="1")
    x, y = plan(experiment).task.load(None).examples("train", torch.arange(2).numpy())
    sent = {}
    for partition in (0, 1):
        client = client_of(experiment, tmp_path, partition)
        assert len(bottlenecks(client.model)) == 1
        sent[partition] = [client.local_gradient(x, y, torch_generator(seed, "probe")) for seed in (0, 1)]
    name = "classifier.bottleneck.decoder.weight"
    assert torch.equal(*(gradient[name] for gradient in sent[0]))
    assert not torch.equal(*(gradient[name] for gradient in sent[1]))


def test_the_controls_beside_an_audit_keep_the_network_and_lower_the_noise() -> None:
    experiment = asked()
    for control, scale in ((UNDEFENDED, 0.0), (WEAK_DEFENCE, 0.01)):
        changed = under_control(plan(experiment).client, control)
        assert changed is not None and changed.defence is not None
        assert changed.defence.settings == PrecodeSettings(scale=scale)
        assert list(changed.model.state_dict()) == list(plan(experiment).client.model.state_dict())


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"set": ("precode.layer=extractor.0",)}, "a fully connected layer among classifier; got layer=extractor.0"),
        ({"set": ("precode.width=0",)}, "width >= 1, got width=0"),
        ({"set": ("precode.scale=-1",)}, "0 <= scale < inf, got scale=-1"),
        ({"method": "fed_cdp", "net": "mlp"}, "local steps follow one loss of a batch with defence=precode, got"),
        ({"method": "dp_fedavg"}, "local steps follow one loss of a batch with defence=precode, got method=dp_fedavg"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(changes: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=line):
        checked(plan(asked(**changes)))


# --- attackers ---

INPUTS = InputSpec.from_constants((1, 8, 8), (0.5,), (0.25,))


def network(scale: float = 1.0) -> Net:
    with initialising(0, "precode"):
        return Precode(PrecodeSettings(width=16, scale=scale)).network(nets.build("lenet", INPUTS.shape, 4))


def sent_by(net: Net, x: Tensor, y: Tensor, seed: int = 0) -> Tensors:
    """The gradient of a client that draws its noise."""
    net.train()
    Precode(PrecodeSettings(width=16)).prepare(net, torch_generator(seed, "precode noise"))
    named = dict(net.named_parameters())
    loss = cross_entropy(net(INPUTS.normalise(x)), y) + penalty(net)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def pictures(count: int) -> Tensor:
    """Two halves of one grey each."""
    greys = torch.rand(count, 1, 2, 1, 1, generator=torch_generator(0, "greys"))
    return greys.expand(count, 1, 2, 4, 8).reshape(count, 1, 8, 8)


def adaptation(scale: float = 1.0) -> PrecodeAdaptation:
    return PrecodeAdaptation(asdict(PrecodeSettings(width=16, scale=scale)))


def distance_at_the_truth(batch: int, scale: float, knows: bool) -> float:
    x, y, net = pictures(batch), torch.arange(batch) % 4, network(scale)
    sent, plain, operator = sent_by(net, x, y), PlainVictim(net, tensors(net), ("*",), INPUTS), adaptation(scale)
    victim = operator.victim(plain, tensors(net), None) if knows else plain
    seen, constants = victim.observed(sent)
    trial = victim.gradient(x, y, {}, constants)
    if knows:
        constants = {**constants, **operator.read(seen)}
        seen = operator.undo(seen)
        trial = operator.apply(trial, seen, constants)
    return float(cosine_distance(trial, seen))


def test_who_computes_the_noise_explains_one_example_exactly() -> None:
    assert distance_at_the_truth(1, 1.0, knows=True) < 1e-5 < 0.05 < distance_at_the_truth(1, 1.0, knows=False)


def test_of_several_examples_the_layers_before_the_bottleneck_are_compared() -> None:
    operator, net = adaptation(), network()
    sent = sent_by(net, pictures(3), torch.arange(3))
    kept = {name for name, value in operator.undo(sent).items() if bool(value.any())}
    assert kept == {name for name in sent if name.startswith("extractor.")}
    assert float(operator.read(sent)["compared"]) == 0
    assert float(operator.read(sent_by(net, pictures(1), torch.arange(1)))["compared"]) == 1


def test_of_a_private_bottleneck_nothing_is_read() -> None:
    sent = {name: value for name, value in sent_by(network(), pictures(1), torch.arange(1)).items() if "extr" in name}
    operator = adaptation()
    for tensors_compared in (operator.undo(sent), operator.apply(sent, sent, operator.read(sent))):
        assert set(tensors_compared) == set(sent)
        assert all(torch.equal(tensors_compared[name], value) for name, value in sent.items())
    plain = PlainVictim(network(), tensors(network()), ("extractor.*",), INPUTS)
    assert operator.victim(plain, tensors(network()), None).observed(sent)[1] == {}


def test_several_steps_are_simulated_without_noise() -> None:
    net = network()
    local = LocalSteps(lr=0.1, steps=2)
    plain = PlainVictim(net, tensors(net), ("*",), INPUTS)
    seen, constants = adaptation().victim(plain, tensors(net), local).observed(tensors(net))
    assert constants == {} and all(not bool(value.any()) for value in seen.values())


def error(scale: float, knows: bool) -> float:
    """Root mean square deviation of searches for three images, one message each."""
    net, images, labels = network(scale), pictures(3), torch.arange(3)
    sent = [sent_by(net, images[i : i + 1], labels[i : i + 1], i) for i in range(3)]
    operator, plain = adaptation(scale), PlainVictim(net, tensors(net), ("*",), INPUTS)
    targets = [SearchTarget(s, labels[i : i + 1], torch_generator(i, "start")) for i, s in enumerate(sent)]
    recipe = SearchConfig(cosine_distance, AdamSearch(300, 0.1, schedule="cosine"), weighted((1e-3, total_variation)))
    victim = operator.victim(plain, tensors(net), None) if knows else plain
    result = invert(victim, targets, recipe, operator=operator if knows else None)
    return float((torch.cat([f.samples for f in result]) - images).square().mean((1, 2, 3)).sqrt().mean())


@pytest.mark.nightly  # four searches
def test_a_search_that_computes_the_noise_comes_as_close_as_without_the_defence() -> None:
    without_noise, knowing, unknowing = error(0.0, knows=False), error(1.0, knows=True), error(1.0, knows=False)
    assert without_noise < 0.08 and knowing < 1.5 * without_noise + 0.01
    assert unknowing > 2 * knowing
    assert error(0.0, knows=True) < 1.5 * without_noise + 0.01  # weakened to nothing


@pytest.mark.slow
def test_noise_beyond_all_digits_defeats_it() -> None:
    assert error(1e8, knows=True) > 0.15  # a random image of this kind is about 0.3 away


# --- audits ---


def words_of(experiment: Experiment, batch: int, steps: int, defended: bool = True) -> list[str]:
    probe_set = ProbeSet("target", 0, "", batch, steps, "target")
    return list(protection_of(*clients_and_adaptation(plan(experiment)), probe_set, "server", defended).words(True))


def test_of_several_examples_or_steps_the_noise_is_named_as_not_made_use_of() -> None:
    line = "not made use of: the bottleneck's noise, which it takes as 0"
    assert [line in words_of(asked(), batch, steps) for batch, steps in ((1, 1), (2, 1), (1, 4))] == [False, True, True]
    compared = words_of(asked(defence="precode+prune"), 2, 1)
    assert line in compared and line not in words_of(asked(defence="prune"), 2, 1)


def test_behind_a_stage_that_changes_entries_the_noise_is_named_as_well() -> None:
    line = "not made use of: the bottleneck's noise, which it takes as 0"
    lost = ("precode+prune", "prune+precode", "precode+low_precision", "precode+dp_gaussian", "soteria+precode+prune")
    assert all(line in words_of(asked(defence=defence), 1, 1) for defence in lost)
    assert line not in words_of(asked(defence="precode+soteria"), 1, 1)


@pytest.mark.parametrize("method", ["fedper", "hyperfl"])
def test_of_a_private_bottleneck_the_noise_is_named_as_well_for_nothing_of_it_is_sent(method: str) -> None:
    line = "not made use of: the bottleneck's noise, which it takes as 0: nothing of it is sent"
    assert line in words_of(asked(method=method), 1, 1)
    assert not any("bottleneck" in words for words in words_of(asked(), 1, 1))


def test_soteria_on_the_bottleneck_itself_has_no_adaptation() -> None:
    operators = [SoteriaAdaptation({"layer": layer}) for layer in ("classifier.bottleneck.encoder", "")]
    assert [bool(fitted([PrecodeAdaptation({"scale": 1.0}), one])) for one in operators] == [False, True]


@pytest.mark.nightly
def test_an_audit_of_several_steps_never_says_that_it_knew_everything(tmp_path: Path) -> None:
    few = ("ig.iterations=2", "sampled.train=20")
    experiment = asked(
        attack=("ig",), images=2, victim_steps=2, rounds=1, local_epochs=1, audit_rounds="0", split="sampled", set=few
    )
    run(replace(experiment, engine="inproc", out=tmp_path / "run"))
    entries = json.loads((tmp_path / "run" / "result.json").read_text())["audit"]
    (informed,) = [entry for entry in entries if entry["adaptation"] == "written"]
    assert not informed["adaptive"] and "the bottleneck's noise, which it takes as 0" in str(informed["granted"])


def test_of_a_client_without_the_defence_the_attacker_s_network_draws_nothing() -> None:
    clients = plan(asked(defended="1")).client
    scales = [bottlenecks(one.build_model())[0].scale for one in (clients, undefended(clients))]
    assert scales == [1.0, 0.0]
    assert undefended(plan(asked(defence="prune", defended="1")).client).defences.name == "prune"
