"""What attackers know of methods that clip and add noise: against the real clients, in searches, and in words."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from flfw.adversary.attack import Attack
from flfw.attacks.adaptations.fed_cdp import FedCDPAdaptation
from flfw.attacks.adaptations.fed_sdp import FedSDPAdaptation
from flfw.attacks.analytic import Analytic
from flfw.attacks.idlg import IDLG
from flfw.attacks.ig import IG
from flfw.audit.adaptation import Protection, protection_of
from flfw.audit.jobs import EASY, EXAMPLE, AttackJob, ProbeSet
from flfw.audit.threat_model import ThreatModel, threat_model_of
from flfw.client.context import ClientContext
from flfw.dp.client import DPClient
from flfw.experiment import Experiment
from flfw.files.outcomes import outcome
from flfw.inversion.client_models.operator import Circumstances, Composed, MethodOperator, Operator
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.inversion.clipped import Clipped, carried, clipped
from flfw.inversion.matching import cosine_distance, gaussian_likelihood, relative_distance, squared_distance
from flfw.inversion.priors import total_variation, weighted
from flfw.inversion.search import SearchConfig, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets import Tensors, tensors
from flfw.nets.training.clipping import CLIP_FACTOR
from flfw.nets.training.local_steps import LocalSteps
from flfw.nets.training.optimisers import LocalTraining
from flfw.plans.run_plan import plan
from flfw.privacy.mechanism import ClientSchedule
from flfw.privacy.mechanism import Mechanism as Privacy
from flfw.report.findings import read_settings
from flfw.rng import initialising, torch_generator
from flfw.runs import run as whole
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy
from flfw.strategies.fed_cdp import FedCDPSettings
from flfw.strategies.fed_sdp import FedSDPSettings
from tests.support.attackable import gradient, small_victim
from tests.support.planned import clients_and_adaptation, clients_and_attacks

SERVER, CLIENT = "server", "client_example"


def probe_set(batch: int = 1, steps: int = 1, server_round: int = 0, on_client: bool = False) -> ProbeSet:
    return ProbeSet("target", server_round, "", batch, steps, EXAMPLE if on_client else "target")


def asked(method: str, *chosen: str, **changes: Any) -> Experiment:
    details = {"method": method, "net": "lenet", "image_size": 8, "dataset": "digits", "engine": "inproc", "clients": 2}
    details |= {"rounds": 3, "local_epochs": 1, "images": 2, "audit_rounds": "0", "set": chosen, "lr": 0.2}
    details |= {"split": "dominant", "augment": "none", "attack": ("ig",)}
    return Experiment(**{**details, **changes})


@dataclass
class Exchange:
    """A client of a method, and one who attacks it."""

    experiment: Experiment
    probe_set: ProbeSet

    def client(self, slot: int = 0) -> DPClient:
        task, asked_for = plan(self.experiment).task.load(None), (slot, self.probe_set.batch, self.probe_set.steps)
        of_client = plan(self.experiment).client
        defence = of_client.defences.of_client(0)
        ctx = ClientContext(of_client, task, 0, self.probe_set.round, defence, None, probe=asked_for)
        with initialising(3, "client"):
            result = plan(self.experiment).client_class(ctx)
        assert isinstance(result, DPClient)
        if CLIP_FACTOR in result.model.state_dict():  # of a later round
            result.model.get_buffer(CLIP_FACTOR).fill_(0.25)
        result.received = {n: v.numpy().copy() for n, v in tensors(result.model).items()}
        return result

    def examples(self) -> tuple[Tensor, Tensor]:
        task = plan(self.experiment).task.load(None)
        return task.examples("train", task.victims(0, 0, self.probe_set.batch, 0))

    def sent(self, slot: int = 0) -> Tensors:
        client, (x, y) = self.client(slot), self.examples()
        if self.probe_set.point == EXAMPLE:
            return client.observed(x, y, client.generator("probe"))
        return client.gradient(x, y) if self.probe_set.steps == 1 else client.stepped(x, y, self.probe_set.steps)

    @property
    def hides(self) -> Protection:
        return protection_of(
            *clients_and_adaptation(plan(self.experiment)),
            self.probe_set,
            CLIENT if self.probe_set.point == EXAMPLE else SERVER,
            self.experiment.defence != "none",
        )

    @property
    def informed(self) -> Operator:
        result = self.hides.through(1.0)
        assert isinstance(result, Clipped | Composed)
        return result

    def victim(self) -> VictimModel:
        """The attacker's model, had it also what the client keeps to itself."""
        client, uploads = self.client(), plan(self.experiment).client.method.uploads
        known, informed = tensors(client.model), self.informed
        plain = PlainVictim(client.model, known, uploads, plan(self.experiment).task.load(None).inputs)
        of_method = self.hides.operator
        assert of_method is not None, "these are methods with one"
        return informed.victim(plain, known, of_method.local_steps)

    def explained(self, slot: int = 0) -> tuple[Tensors, Tensors]:
        """What the true examples would have been sent as, and what was sent."""
        victim, (x, y), informed = self.victim(), self.examples(), self.informed
        observed, constants = victim.observed(self.sent(slot))
        constants = {**constants, **informed.read(observed)}
        return informed.apply(victim.gradient(x, y, {}, constants), observed, constants), observed


def exchange(method: str, *chosen: str, at: int = 0, defence: str = "none", **size: int) -> Exchange:
    return Exchange(asked(method, *chosen, defence=defence), probe_set(server_round=at, **size))


# --- by hand ---


def test_groups_are_clipped_one_by_one_with_a_bound_for_each() -> None:
    gradient = {"a.w": torch.tensor([3.0]), "a.b": torch.tensor([4.0]), "b.w": torch.tensor([0.3])}
    by_layers = {n: float(v) for n, v in clipped(gradient, 1.0, "layer").items()}
    assert by_layers == pytest.approx({"a.w": 0.6, "a.b": 0.8, "b.w": 0.3})
    assert float(clipped(gradient, 1.0, "tensor")["a.w"]) == pytest.approx(1.0)
    both = clipped(gradient, {"a": torch.tensor(2.5), "b": torch.tensor(0.1)}, "layer")
    assert {n: float(v) for n, v in both.items()} == pytest.approx({"a.w": 1.5, "a.b": 2.0, "b.w": 0.1})


def test_clipping_has_a_finite_derivative_at_zero() -> None:
    slope = grad(lambda t: clipped({"a": t}, 1.0, "flat")["a"].sum())(torch.zeros(2))
    assert slope.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("local", "std"),
    [
        (LocalSteps(lr=0.1, steps=1), 1.0),
        (LocalSteps(lr=0.1, steps=4), 0.5),
        (LocalSteps(lr=0.1, steps=2, momentum=0.5), sqrt(1.5**2 + 1) / 2),
        (LocalSteps(lr=0.5, steps=2, weight_decay=0.4), sqrt(0.8**2 + 1) / 2),  # the first shrinks by lr times decay
    ],
)
def test_noise_adds_up_over_the_steps(local: LocalSteps, std: float) -> None:
    assert carried(local) == pytest.approx(std)


@pytest.mark.parametrize("bound", ["constant", "decay", "lr"])
def test_the_bound_of_each_round_is_the_methods(bound: Any) -> None:
    settings = FedCDPSettings(bound=bound, clip=6.0, lr_decay=0.9)
    for at in range(7):
        informed = FedCDPAdaptation(dataclasses.asdict(settings), Circumstances(round=at, rounds=5))
        assert informed.bound == pytest.approx(settings.clip_at(at, 5))


# --- on what real clients send ---

QUIET = "noise_multiplier=0"
AUTOMATIC = "clipping=automatic"
SHORT = "clip=0.05"  # bites in every layer of a fresh network
EXACT = {
    "by layers": exchange("fed_cdp", QUIET, SHORT),
    "by tensors": exchange("fed_cdp", QUIET, SHORT, "grouping=tensor"),
    "flat": exchange("fed_cdp", QUIET, SHORT, "grouping=flat"),
    "one example on the client": exchange("fed_cdp", QUIET, SHORT, on_client=True),
    "each of three": exchange("fed_cdp", QUIET, SHORT, batch=3),
    "a later bound": exchange("fed_cdp", QUIET, "clip=0.2", "bound=decay", "last_clip=0.01", at=2),
    "a learning rate's bound": exchange("fed_cdp", QUIET, "clip=0.2", "bound=lr", "lr_decay=0.3", at=3, steps=2),
    "a median": exchange("fed_cdp", QUIET, "bound=median"),
    "compressed": exchange("fed_cdp", QUIET, SHORT, "compress=after", batch=2),
    "compressed before": exchange("fed_cdp", QUIET, SHORT, "compress=before"),
    "three steps": exchange("fed_cdp", QUIET, SHORT, "momentum=0.5", "weight_decay=0.1", steps=3, batch=2),
    "automatic": exchange("fed_cdp", QUIET, SHORT, AUTOMATIC),
    "automatic of three": exchange("fed_cdp", QUIET, "clip=3", AUTOMATIC, "grouping=flat", batch=3),
    "automatic steps": exchange("dp_fedavg", QUIET, SHORT, AUTOMATIC, steps=3, batch=2),
    "an automatic update": exchange("fed_sdp", QUIET, SHORT, AUTOMATIC),
    "an automatic update of steps": exchange("dp_fedavg", QUIET, SHORT, AUTOMATIC, "unit=client", steps=3),
    "an update": exchange("fed_sdp", QUIET, SHORT),
    "a moving bound": exchange("dp_fedavg", "clip=0.1", "unit=client", "quantile=0.5"),
    "a moving bound over steps": exchange("ppsgd", "clip=0.1", "unit=client", "quantile=0.5", steps=2),
    "an update of three": exchange("fed_sdp", QUIET, SHORT, "grouping=tensor", batch=3),
    "an update of steps": exchange("fed_sdp", QUIET, SHORT, "momentum=0.5", "weight_decay=0.1", steps=3),
    "a server's noise": exchange("fed_sdp", SHORT, "noised_by=server"),
    "flat by default": exchange("dp_fedavg", QUIET, batch=2),
    "a unit": exchange("dp_fedavg", SHORT, "unit=client", steps=2),
    "an extractor": exchange("centaur", QUIET, batch=2, steps=2),
    "another": exchange("ppsgd", QUIET, "grouping=layer"),
    "an extractor's update": exchange("ppsgd", "unit=client", steps=2),
    "pruned": exchange("fed_cdp", QUIET, SHORT, batch=2, defence="prune"),
    "an update, pruned": exchange("dp_fedavg", SHORT, "unit=client", defence="prune"),
    "rounded to signs": exchange("fed_cdp", QUIET, SHORT, "low_precision.bits=2", defence="low_precision"),
}


@pytest.mark.parametrize("given", EXACT.values(), ids=EXACT)
def test_the_true_examples_explain_what_a_client_sent(given: Exchange) -> None:
    result, sent = given.explained()
    assert given.informed.noise is None and set(result) == set(sent)
    for name, value in sent.items():
        torch.testing.assert_close(result[name], value, rtol=1e-3, atol=1e-3 * float(value.abs().max()))
    bare = given.client().model
    plain = gradient(bare, plan(given.experiment).task.load(None).inputs, *given.examples())
    # Who does not know is wrong.
    assert max(float(relative_distance({n: plain[n]}, {n: value})) for n, value in sent.items()) > 0.01


SECOND = "dp_gaussian.std=0.3"
NOISY = {
    "one": exchange("fed_cdp", "clip=0.1", "noise_multiplier=2"),
    "three": exchange("fed_cdp", "clip=0.1", "noise_multiplier=2", batch=3),
    "automatic": exchange("fed_cdp", "clip=0.1", "noise_multiplier=2", AUTOMATIC, batch=3),
    "a draw each": exchange("fed_cdp", "clip=0.1", "noise_multiplier=2", "draws=example", batch=4),
    "on the client": exchange("fed_cdp", "clip=0.1", "noise_multiplier=2", "grouping=flat", on_client=True),
    "a later bound": exchange("fed_cdp", "clip=2", "last_clip=0.2", "bound=decay", "noise_multiplier=2", at=3),
    "a median": exchange("fed_cdp", "bound=median", "noise_multiplier=0.5"),
    "an update": exchange("fed_sdp", "clip=0.1", "noise_multiplier=2", batch=2),
    "an update of steps": exchange("fed_sdp", "clip=0.1", "noise_multiplier=2", "momentum=0.5", steps=3),
    "a share of an update's": exchange("fed_sdp", "clip=0.1", "noise_multiplier=2", "noise_shares=9", batch=2),
    "steps": exchange("dp_fedavg", "clip=0.0001", "noise_multiplier=2", "momentum=0.9", batch=2, steps=4),
    "an extractor": exchange("centaur", "noise_multiplier=2"),
    "a second noise": exchange("fed_cdp", "clip=0.1", "noise_multiplier=2", SECOND, batch=2, defence="dp_gaussian"),
    "an update's second": exchange(
        "fed_sdp", "clip=0.1", "noise_multiplier=2", "dp_gaussian.std=0.5", defence="dp_gaussian"
    ),
    "rounded": exchange("fed_cdp", "clip=0.1", "noise_multiplier=2", batch=2, defence="low_precision"),
    "rounded by chance": exchange("fed_sdp", "low_precision.rounding=stochastic", defence="low_precision"),
    "a second, rounded": exchange("dp_fedavg", "clip=0.1", SECOND, defence="dp_gaussian+low_precision"),
    "the second alone": exchange("dp_fedavg", "unit=client", "clip=0.1", "dp_gaussian.std=0.3", defence="dp_gaussian"),
}


@pytest.mark.parametrize("given", NOISY.values(), ids=NOISY)
def test_the_deviation_is_that_of_repeated_probes(given: Exchange) -> None:
    left = []
    for slot in range(4):
        result, sent = given.explained(slot)
        left.append(torch.cat([(result[n] - v).flatten() for n, v in sent.items()]))
    noise = given.informed.noise
    assert noise is not None and not torch.equal(left[0], left[1])
    assert float(torch.stack(left).square().mean().sqrt()) == pytest.approx(noise, rel=0.04)
    assert abs(float(torch.stack(left).mean())) < 4 * noise / sqrt(torch.stack(left).numel())


def test_where_noise_comes_after_the_smallest_were_zeroed_a_trial_zeroes_its_own() -> None:
    given = exchange("fed_cdp", "clip=0.1", "noise_multiplier=1e-6", "compress=before", "compress_ratio=0.5")
    result, sent = given.explained()
    for name, value in sent.items():
        zeroed = result[name] == 0
        assert int(zeroed.sum()) >= value.numel() // 2
        assert float((result[name] - value).abs().max()) < 1e-6


def test_several_at_once_are_each_alone_and_have_a_derivative() -> None:
    for given in (exchange("fed_cdp", "compress=before"), exchange("fed_cdp", "bound=median", "compress=after")):
        victim, informed = given.victim(), given.informed
        x = torch.rand(3, 1, 1, 8, 8, generator=torch_generator(0, "x"))
        observed, constants = victim.observed(given.sent())
        constants = {**constants, **informed.read(observed)}

        def objective(
            x: Tensor, victim: Any = victim, informed: Any = informed, seen: Any = (observed, constants)
        ) -> Tensor:
            trial = victim.gradient(x, torch.tensor([1]), {}, seen[1])
            return squared_distance(informed.apply(trial, *seen), seen[0])

        together = vmap(grad(objective))(x)
        torch.testing.assert_close(together[1], grad(objective)(x[1]), rtol=1e-3, atol=1e-6)
        assert bool(torch.isfinite(together).all()) and float(together.norm()) > 0


# --- in a search ---

ADAM = AdamSearch(150, 0.1, schedule="cosine")
COSINE = SearchConfig(cosine_distance, ADAM, weighted((1e-3, total_variation)))
SMOOTH = weighted((30.0, total_variation))


def search_error(informed: MethodOperator, noise: float, batch: int, config: SearchConfig, knowing: bool) -> float:
    """Root mean square deviation, on average over three probes of images of two greys."""
    victim = informed.victim(small_victim(), small_victim().known, None)
    rng = torch_generator(0, "pictures")
    greys = torch.rand(3, batch, 1, 2, 1, 1, generator=rng)
    images, labels = greys.expand(3, batch, 1, 2, 3, 6).reshape(3, batch, 1, 6, 6), torch.arange(batch)
    sent = [victim.gradient(one, labels, {}, {}) for one in images]
    sent = [{n: v + noise * torch.randn(v.shape, generator=rng) for n, v in one.items()} for one in sent]
    targets = [SearchTarget(one, labels, torch_generator(0, "start", i)) for i, one in enumerate(sent)]
    result = invert(victim if knowing else small_victim(), targets, config, operator=informed if knowing else None)
    return float((torch.stack([f.samples for f in result]) - images).square().mean((1, 2, 3, 4)).sqrt().mean())


def cdp(batch: int = 1, **settings: Any) -> FedCDPAdaptation:
    return FedCDPAdaptation(dataclasses.asdict(FedCDPSettings(**settings)), Circumstances(batch=batch))


def sdp(**settings: Any) -> FedSDPAdaptation:
    return FedSDPAdaptation(dataclasses.asdict(FedSDPSettings(**settings)), Circumstances(lr=0.1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("informed", "batch", "margin"),
    [
        (cdp(noise_multiplier=0.0, clip=0.05), 1, 3.0),
        (cdp(noise_multiplier=0.0, clip=0.05, batch=3), 3, 2.0),
        (cdp(noise_multiplier=0.0, clip=0.05, clipping="automatic"), 1, 3.0),
        (sdp(noise_multiplier=0.0, clip=0.005), 1, 3.0),
    ],
    ids=["one example", "three examples", "automatic", "an update"],
)
def test_who_knows_of_the_clipping_comes_closer(informed: MethodOperator, batch: int, margin: float) -> None:
    static, knowing = (search_error(informed, 0.0, batch, COSINE, knows) for knows in (False, True))
    assert static > margin * knowing


@pytest.mark.slow
def test_who_knows_of_the_noise_comes_closer() -> None:
    informed = cdp(noise_multiplier=0.05, clip=1.0)
    assert informed.noise == pytest.approx(0.05)
    likely = SearchConfig(gaussian_likelihood(0.05), ADAM, SMOOTH)
    assert search_error(informed, 0.05, 1, COSINE, False) > 1.2 * search_error(informed, 0.05, 1, likely, True)


# --- in words ---


class Shielded(FederatedStrategy):
    """Somebody's own method for privacy, for which nothing is written."""

    Settings = LocalTraining

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        return weighted_mean(updates)

    @classmethod
    def mechanism(cls, settings: Any, schedule: ClientSchedule) -> Privacy | None:
        return None


OWN = f"{__name__}:Shielded"


def stands(
    given: Experiment, at: ProbeSet, adaptive: bool, attack: Attack | None = None, defended: bool = False
) -> ThreatModel:
    vantage = CLIENT if at.point == EXAMPLE else SERVER
    job = AttackJob("ig", at, (), Path("none"), {}, (1, 8, 8), 10, (0.5,), (0.5,), vantage=vantage, adaptive=adaptive)
    return threat_model_of(*clients_and_attacks(plan(given)), job, attack or IG(), defended)


def test_an_attacker_is_adaptive_only_where_it_models_all_that_is_done() -> None:
    cdp_, sdp_ = asked("fed_cdp"), asked("fed_sdp")
    static = stands(cdp_, probe_set(), False)
    assert (static.adaptive, static.adaptation, static.protected_by) == (False, None, "fed_cdp")
    assert static.granted[-1] == "not granted: that fed_cdp clips and adds noise"
    informed = stands(cdp_, probe_set(3), True)
    assert (informed.adaptive, informed.adaptation, informed.protected_by) == (True, "written", "fed_cdp")
    words = "that fed_cdp clips each example's gradient (C=4 a layer) and adds noise (sigma=6)"
    assert informed.granted[-1] == f"{words}, to which it adapts with what is written for it"
    many = stands(cdp_, probe_set(steps=2), True)
    assert not many.adaptive and many.adaptation == "written"
    assert many.granted[-1].startswith("not made use of: that the noise of a step moves the weights")
    assert any("fed_cdp's optimiser" in words for words in many.granted)
    assert stands(asked("fed_cdp", QUIET), probe_set(steps=2), True).adaptive
    assert stands(sdp_, probe_set(steps=2), True).adaptive  # its noise comes after all steps
    of_its_own = stands(asked("fed_sdp", "noise_multiplier=3", "noise_shares=9"), probe_set(), True).granted[-1]
    assert "clips each update (C=4 a layer) and adds noise (sigma=1)" in of_its_own
    assert not stands(cdp_, probe_set(), True, IDLG()).adaptive  # labels are read off a noisy layer
    assert not stands(asked("centaur"), probe_set(), True).adaptive  # the head is hidden
    assert "(C=0.04 over all tensors)" in stands(asked("dp_fedavg", "unit=client"), probe_set(), True).granted[-1]
    automatic = stands(asked("dp_fedavg", AUTOMATIC), probe_set(), True)
    assert automatic.adaptive and "(C=0.04 over all tensors, automatic)" in automatic.granted[-1]


def test_where_nothing_is_done_to_what_is_read_there_is_nothing_to_adapt_to() -> None:
    example = probe_set(on_client=True)
    for given in (asked("fed_sdp"), asked("fed_cdp", "observed=bare"), asked("dp_fedavg", "unit=client")):
        assert protection_of(*clients_and_adaptation(plan(given)), example, CLIENT, False).how == "nothing to adapt to"
        bare = stands(given, example, False)
        assert bare.adaptive and bare.protected_by is None
        assert bare.granted[-1].endswith("which does nothing to what is read here")
        assert not any("seed" in words for words in bare.granted)
    assert protection_of(*clients_and_adaptation(plan(asked("fed_cdp"))), EASY, SERVER, False) == Protection(
        *clients_and_adaptation(plan(asked("fed_cdp"))), EASY, SERVER
    )
    assert protection_of(*clients_and_adaptation(plan(asked("fedavg"))), probe_set(), SERVER, False).by == ""


@pytest.mark.parametrize(
    ("given", "at", "text"),
    [
        (asked(OWN), probe_set(), f"what {OWN} does to the data for their privacy, for which no adaptation is written"),
        (asked("fed_cdp", adaptation="none"), probe_set(), "that fed_cdp clips and adds noise"),
        (asked("fed_cdp", "bound=median"), probe_set(2), "of several examples or steps the client's own bound"),
        (asked("fed_cdp", "compress=after"), probe_set(1, 2), "what is zeroed in each of several steps"),
        (asked("dp_fedavg", "optimiser=adam"), probe_set(1, 2), "of several steps of Adam"),
    ],
)
def test_what_is_not_adapted_to_is_static_and_that_is_said(given: Experiment, at: ProbeSet, text: str) -> None:
    protection = protection_of(*clients_and_adaptation(plan(given)), at, SERVER, False)
    assert protection.how == "none" and protection.through(1.0) is None
    result = stands(given, at, False)
    assert not result.adaptive and result.granted[-1].startswith("not made use of: ") and text in result.granted[-1]


def test_a_defence_after_a_method_is_adapted_to_with_it() -> None:
    given = asked("fed_cdp", defence="prune")
    both = stands(given, probe_set(3), True, defended=True)
    assert (both.adaptive, both.adaptation, both.protected_by) == (True, "written", "prune")
    assert both.granted[-2].startswith("that the client uses prune (ratio=0.9), to which it adapts")
    clips = "that before it fed_cdp clips each example's gradient (C=4 a layer) and adds noise (sigma=6)"
    assert both.granted[-1] == f"{clips}, to which it adapts as well"
    assert sum("the run's seed, from which fed_cdp may draw" in words for words in both.granted) == 1
    granted = stands(given, probe_set(3), False, defended=True).granted
    assert granted[-1] == "not granted: that fed_cdp clips and adds noise"
    early = stands(given, probe_set(on_client=True), True, defended=True)  # before the update is pruned
    assert (early.adaptive, early.protected_by) == (True, "fed_cdp")
    assert early.granted[-2] == "that the client uses prune, which does nothing to what is read here"


@pytest.mark.parametrize(
    ("given", "at"),
    [
        (asked("fed_cdp", "low_precision.bits=2", defence="low_precision"), probe_set()),  # hardly more than signs
        (asked("fed_cdp", "dp_gaussian.clip=1", defence="dp_gaussian"), probe_set()),  # and this scales it
        (asked("fed_cdp", "compress=after", defence="dp_gaussian"), probe_set()),  # this fills the zeros
        (asked("fed_cdp", "bound=median", defence="prune"), probe_set()),  # and this changes the norms
        (asked("fed_cdp", defence="prune"), probe_set(steps=2)),
        (asked("dp_fedavg", "unit=client", defence="soteria"), probe_set()),  # which acts before the clipping
    ],
)
def test_of_a_defence_and_a_method_that_do_not_compose_the_rest_is_said(given: Experiment, at: ProbeSet) -> None:
    both = stands(given, at, True, defended=True)
    assert (both.adaptive, both.protected_by) == (False, given.defence)
    action = "clips" if given.method == "dp_fedavg" else "clips and adds noise"
    assert both.granted[-1] == f"not made use of: that {given.method} {action}, beside the defence"


# --- in a whole run ---


@pytest.mark.nightly
@pytest.mark.parametrize(("rule", "text"), [("abadi", ""), ("automatic", ", automatic")])
def test_an_audit_has_a_static_and_an_adaptive_entry_at_each_place(tmp_path: Path, rule: str, text: str) -> None:
    set_ = ("clip=0.1", "noise_multiplier=0.0002", f"clipping={rule}", "ig.iterations=120")
    given = asked("fed_cdp", *set_, out=tmp_path / "run", rounds=1, images=1, vantage=(SERVER, CLIENT))
    folder = whole.run(given)
    entries = json.loads((folder / "result.json").read_text())["audit"]
    details = [(e["vantage"], e["adaptive"], e["adaptation"], e["defence"], e["protected_by"]) for e in entries]
    both = [(False, None, "none", "fed_cdp"), (True, "written", "none", "fed_cdp")]
    assert details == [(vantage, *one) for vantage in (SERVER, CLIENT) for one in both]
    for static, informed in (entries[:2], entries[2:]):
        assert outcome(static) == "static" and informed["verdict"] == "leaks"
        assert informed["psnr"]["mean"] > static["psnr"]["mean"] + 8
        assert f"(C=0.1 a layer{text}) and adds noise (sigma=0.0002)" in informed["granted"][-1]
    names = [setting.name for setting in read_settings(folder, entries, pictures=False)]
    assert names[:2] == ["ig (server)", "ig told of fed_cdp (server)"]
    page = (folder / "report.html").read_text()
    assert "told of none" not in page and "fed_cdp with" not in page


@pytest.mark.slow
def test_a_closed_form_reads_on_through_the_clipping_and_is_static(tmp_path: Path) -> None:
    given = asked("dp_fedavg", "unit=client", net="linear", attack=("analytic",), out=tmp_path / "run", rounds=1)
    (entry,) = json.loads((whole.run(given) / "result.json").read_text())["audit"]
    assert entry["verdict"] == "leaks" and not entry["adaptive"] and entry["adaptation"] is None
    assert not stands(given, probe_set(), False, Analytic()).adaptive
