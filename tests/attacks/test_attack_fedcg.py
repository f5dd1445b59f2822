"""The attack on private extractors: exact features, stand-ins, known starts, which classes there are, its grants."""

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw import data, nets
from flfw.adversary.attack import Attack, NotApplicableError
from flfw.adversary.gradient_matching import FeatureSearch, FeatureSearchSettings
from flfw.attacks.dlg_statistics import DLGStatistics
from flfw.attacks.fedcg import FedCGInversion, FedCGInversionSettings
from flfw.attacks.ig import IG
from flfw.audit.auditor import Auditor
from flfw.audit.job_planner import JobPlanner
from flfw.audit.jobs import AttackJob, ProbeSet, target_probe_set
from flfw.audit.knowledge import _start
from flfw.audit.measures.metrics import psnr
from flfw.audit.measures.public import PublicData
from flfw.audit.measures.recovery import assign
from flfw.audit.threat_model import threat_model_of
from flfw.client.context import ClientContext
from flfw.experiment import Experiment
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.closed_form.labels import classes_held, moved_rows, rising_rows
from flfw.inversion.closed_form.linear import (
    ExtractorVictim,
    feature_victim,
    features_range,
    features_shape,
    first_linear,
    read_features,
)
from flfw.inversion.private.surrogate import SurrogateTraining, learn, restarted
from flfw.nets import Net
from flfw.nets.conditional_gan import GeneratingNet
from flfw.nets.inputs import InputSpec
from flfw.nets.training.optimisers import SGD, Adam
from flfw.plans.run_plan import plan
from flfw.recording.observation import Examples, Knowledge, Observation, Vantage
from flfw.recording.reader import Recordings
from flfw.rng import initialising, numpy_generator, torch_generator
from flfw.runs import run as whole
from tests.support.attackable import gradient
from tests.support.planned import clients_and_attacks, clients_and_audit


@cache
def digits() -> tuple[InputSpec, Tensor, Tensor]:
    """The embedded digits at 8x8, raw and in a fixed random order."""
    dataset = data.load("digits", None, 8)
    x, y = torch.from_numpy(dataset.train_x.copy()).float() / 255, torch.from_numpy(dataset.train_y.copy())
    return InputSpec.from_constants(dataset.shape, dataset.mean, dataset.std), x, y


def small(seed: int = 0, width: int = 6) -> Net:
    """A private extractor of 6x4x4 features in (0, 1) below a classifier of two layers, as LeNet5 in small."""
    with initialising(seed, "small"):
        extractor = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.AvgPool2d(2), nn.Sigmoid())
        classifier = nn.Sequential(nn.Flatten(), nn.Linear(16 * width, 24), nn.Sigmoid(), nn.Linear(24, 10))
    net = Net(extractor, classifier)
    net.shape, net.classes = (1, 8, 8), 10
    return net


def trained(net: Net, x: Tensor, y: Tensor, epochs: int = 25) -> Net:
    inputs, adam, parameters = digits()[0], Adam(1e-2), dict(net.named_parameters())
    for epoch in range(epochs):
        for rows in torch.randperm(len(y), generator=torch_generator(0, "epoch", epoch)).split(32):
            loss = cross_entropy(net(inputs.normalise(x[rows])), y[rows])
            result = torch.autograd.grad(loss, list(parameters.values()))
            adam.step(parameters, dict(zip(parameters, result, strict=True)))
    return net.eval()


def sent_by(net: nn.Module, x: Tensor, y: Tensor, part: str = "classifier.") -> nets.Tensors:
    """The classifier's gradient, by the ordinary way."""
    return {name: value for name, value in gradient(net, digits()[0], x, y).items() if name.startswith(part)}


def seen_by(
    net: Net, x: Tensor, y: Tensor, at: int, client: int = 0, slot: int = 0, shared: str = "classifier."
) -> Observation:
    received = {name: value.clone() for name, value in nets.tensors(net).items() if name.startswith(shared)}
    sent = sent_by(net, x, y, shared)
    return Observation(Vantage.SERVER, "probe", "target", at, client, slot, sent, received)


def known_of(observation: Observation, y: Tensor, **more: Any) -> Knowledge:
    """Of a network whose other tensors are drawn by the attacker; more: what else is granted."""
    victim = PlainVictim(small(77), observation.received, tuple(observation.sent), digits()[0])
    return Knowledge(victim, len(y), y, **more)


def attacked(attack: Attack, observation: Observation, knowledge: Knowledge) -> Tensor:
    (result,) = attack.run([observation], [knowledge], [torch_generator(3, "attack")])
    return result.samples


def mean_psnr(truth: Tensor, guess: Tensor) -> float:
    return sum(psnr(a.numpy(), b.numpy()) for a, b in zip(truth, guess, strict=True)) / len(truth)


# --- features ---


def test_features_of_one_example_are_exact() -> None:
    _, x, y = digits()
    net, inputs = small(), digits()[0]
    sent = sent_by(net, x[:1], y[:1])
    features = net.extractor(inputs.normalise(x[:1])).detach().flatten()
    name = first_linear(net)
    assert name == "classifier.1"
    result = read_features(sent[f"{name}.weight"], sent[f"{name}.bias"])
    assert float((result - features).norm() / features.norm()) < 1e-5
    other = read_features(sent["classifier.3.weight"], sent["classifier.3.bias"])
    assert other.shape != features.shape  # the other layer's inputs are the hidden units
    hidden = torch.sigmoid(net.classifier[1](features)).detach()  # type: ignore[index]
    assert float((other - hidden).norm() / hidden.norm()) < 1e-5


def test_a_zero_gradient_gives_no_features() -> None:
    assert bool(read_features(torch.zeros(3, 4), torch.zeros(3)).isnan().all())


@pytest.mark.parametrize(
    ("classifier", "expected"),
    [
        (nn.Linear(4, 2), "classifier"),
        (nn.Sequential(nn.Dropout(), nn.Flatten(), nn.Linear(4, 2)), "classifier.2"),
        (nn.Sequential(nn.Linear(4, 2, bias=False)), None),
        (nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), None),  # its inputs are not the features
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Linear(4, 2)), None),
    ],
)
def test_the_first_layer_is_read_only_where_nothing_stands_before_it(classifier: nn.Module, expected: Any) -> None:
    assert first_linear(Net(nn.Identity(), classifier)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("batch", [2, 4])
def test_features_of_small_batches_are_found_through_the_known_classifier(batch: int) -> None:
    inputs, x, y = digits()
    net = trained(small(), x[:300], y[:300], 2)
    observation = seen_by(net, x[300 : 300 + batch], y[300 : 300 + batch], 1)
    knowledge = known_of(observation, y[300 : 300 + batch])
    (result,) = FeatureSearch(FeatureSearchSettings(300)).features(
        [observation], [knowledge], [torch_generator(0, "x")]
    )
    features = net.extractor(inputs.normalise(x[300 : 300 + batch])).detach()
    order = torch.from_numpy(assign(features.numpy(), result.numpy()))
    spread = (features - features.mean(0)).norm()
    assert float((result[order] - features).norm() / spread) < 0.05


def test_what_is_known_of_features() -> None:
    assert features_shape(small(), digits()[0]) == (6, 4, 4) and features_range(small()) == (0.0, 1.0)
    assert features_range(Net(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))) == (0.0, torch.inf)
    assert features_range(Net(nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2))) == (-torch.inf, torch.inf)


def test_a_feature_victim_has_the_client_s_gradient_at_the_client_s_features() -> None:
    inputs, x, y = digits()
    net = small()
    observation = seen_by(net, x[:3], y[:3], 1)
    victim = feature_victim(known_of(observation, y[:3]).model)
    features = net.extractor(inputs.normalise(x[:3])).detach()
    torch.testing.assert_close(victim.gradient(features, y[:3], {}, {}), dict(observation.sent))


def test_an_extractor_victim_sends_features_in_distances_from_a_blank() -> None:
    inputs, x, _ = digits()
    net = small()
    victim = ExtractorVictim(small(5), nets.tensors(net), inputs)
    features = net.extractor(inputs.normalise(x[:2])).detach()
    observed, _ = victim.observed(victim.sent(features))
    blank = net.extractor(torch.zeros(1, 1, 8, 8)).detach()
    torch.testing.assert_close(observed["features"], features - blank)
    torch.testing.assert_close(victim.gradient(x[:2], torch.zeros(2), {}, {})["features"], features - blank)


# --- ways ---


@pytest.mark.slow
def test_a_common_start_is_inverted_before_training() -> None:
    _, x, y = digits()
    net, chosen = small(), FedCGInversion(FedCGInversionSettings(search_iterations=400))
    observation = seen_by(net, x[:1], y[:1], 0)
    start = {name: value for name, value in nets.tensors(net).items() if name.startswith("extractor.")}
    assert mean_psnr(x[:1], attacked(chosen, observation, known_of(observation, y[:1], start=start))) > 25
    other = {name: value for name, value in nets.tensors(small(4)).items() if name.startswith("extractor.")}
    assert mean_psnr(x[:1], attacked(chosen, observation, known_of(observation, y[:1], start=other))) < 20


def test_a_start_is_of_no_use_once_training_has_begun() -> None:
    _, x, y = digits()
    observation = seen_by(small(), x[:1], y[:1], 1)
    knowledge = known_of(observation, y[:1], start={n: v for n, v in nets.tensors(small()).items() if "extractor" in n})
    with pytest.raises(NotApplicableError, match="not as all clients' began"):
        attacked(FedCGInversion(FedCGInversionSettings(variant="start")), observation, knowledge)


@pytest.mark.slow
def test_a_shared_extractor_needs_no_start() -> None:
    _, x, y = digits()
    observation = seen_by(small(), x[:1], y[:1], 1, shared="")
    attack = FedCGInversion(FedCGInversionSettings(search_iterations=400))
    assert mean_psnr(x[:1], attacked(attack, observation, known_of(observation, y[:1]))) > 25


TEACHING: dict[str, Any] = {"surrogates": 1, "surrogate_epochs": 120, "decoder_epochs": 60, "width": 128, "noise": 1.2}


@cache
def after_training() -> tuple[Net, Examples]:
    _, x, y = digits()
    return trained(small(), x[:500], y[:500]), Examples(x[500:1200], y[500:1200])


@pytest.mark.nightly
def test_a_decoder_of_stand_ins_beats_the_class_mean_and_the_paper_s_attack() -> None:
    _, x, y = digits()
    (net, public), count = after_training(), 12
    floors = PublicData.from_arrays(public.samples.numpy(), public.labels.numpy())
    seen = [seen_by(net, x[i : i + 1], y[i : i + 1], 1, slot=i) for i in range(count)]
    first = known_of(seen[0], y[:1], public=public)
    known = [dataclasses.replace(first, labels=y[i : i + 1]) for i in range(count)]
    rngs = [torch_generator(3, "attack", i) for i in range(count)]
    static = DLGStatistics(DLGStatistics.Settings(adam_iterations=200, lbfgs_iterations=0))
    guesses = {
        name: torch.cat([result.samples for result in attack.run(seen, known, rngs)])
        for name, attack in (("decoder", FedCGInversion(FedCGInversionSettings(**TEACHING))), ("static", static))
    }
    floor = [floors.floors(x[i].numpy(), int(y[i]), numpy_generator(0, "x"))["class_mean"] for i in range(count)]
    decoded, paper_s = (mean_psnr(x[:count], guesses[name]) for name in ("decoder", "static"))
    assert decoded > sum(floor) / count + 1.0, (decoded, floor)
    assert paper_s < sum(floor) / count


@pytest.mark.slow
def test_own_tunes_under_what_the_client_uploaded_and_changes_nothing_else() -> None:
    _, x, y = digits()
    net, public = after_training()
    observation = seen_by(net, x[:1], y[:1], 1)
    brief = {**TEACHING, "surrogates": 1, "surrogate_epochs": 2, "decoder_epochs": 2, "tuning_epochs": 1}
    usual, tuned = (FedCGInversion(FedCGInversionSettings(**brief, own=own)) for own in (False, True))
    plain = attacked(usual, observation, known_of(observation, y[:1], public=public))
    uploaded = {n: v for n, v in nets.tensors(net).items() if n.startswith("classifier.")}
    known = known_of(observation, y[:1], public=public, uploaded=uploaded)
    assert torch.equal(attacked(usual, observation, known), plain)
    assert not torch.equal(attacked(tuned, observation, known), plain)


def test_learning_leaves_what_it_is_given_as_it_was() -> None:
    inputs, _, _ = digits()
    net, public = after_training()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with initialising(0, "surrogates"):
        extractor = restarted(net.extractor)
        held = (public.samples[:64], public.labels[:64])
        result = learn(
            [extractor], net.classifier, held, inputs, SurrogateTraining(1, 1, width=8), torch_generator(0, "x")
        )
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.requires_grad for p in net.parameters())
    chosen, other = (e.state_dict()["0.weight"] for e in (extractor, result.extractors[0]))
    assert not torch.equal(chosen, other) and not torch.equal(chosen, before["extractor.0.weight"])


def test_refusals() -> None:
    _, x, y = digits()
    observation = seen_by(small(), x[:1], y[:1], 1)
    with pytest.raises(NotApplicableError, match="public data"):
        attacked(FedCGInversion(), observation, known_of(observation, y[:1]))
    private_head = seen_by(small(), x[:1], y[:1], 1, shared="extractor.")
    with pytest.raises(NotApplicableError, match="classifier is shared"):
        attacked(FedCGInversion(), private_head, known_of(private_head, y[:1]))
    known = known_of(observation, y[:1], public=Examples(x[:9], y[:9]))
    with pytest.raises(NotApplicableError, match="no generator"):
        attacked(FedCGInversion(FedCGInversionSettings(variant="generator")), observation, known)


# --- which classes there are ---


def test_rows_that_moved_and_rows_that_rose() -> None:
    before = torch.zeros(3, 2)
    assert moved_rows(before, torch.tensor([[0.0, 1e-20], [0.0, 0.0], [1.0, 0.0]])).tolist() == [True, False, True]
    assert rising_rows(torch.tensor([[-1.0, 0.01], [-1.0, 0.5], [0.0, 0.0]])).tolist() == [False, True, False]


@pytest.mark.parametrize("held", [(0, 3, 7), (1,), (2, 3, 4, 5, 6, 8, 9)])
def test_classes_are_read_off_the_last_layer_of_a_method_without_generator(held: tuple[int, ...]) -> None:
    inputs, x, y = digits()
    rows = torch.cat([(y == c).nonzero()[:12, 0] for c in held])
    net = trained(small(), x[:400], y[:400], 3)
    received = {name: value.clone() for name, value in nets.tensors(net).items()}
    parameters, sgd = dict(net.named_parameters()), SGD(0.05, weight_decay=1e-4)
    for _ in range(20):
        loss = cross_entropy(net(inputs.normalise(x[rows])), y[rows])
        sgd.step(parameters, dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True)))
    result = classes_held(net, received, nets.tensors(net))
    assert result is not None and result.nonzero().flatten().tolist() == list(held)


def test_classes_are_read_off_a_generator_s_embedding_to_the_bit() -> None:
    with initialising(0, "generating"):
        model = GeneratingNet(nets.build("lenet5", (1, 32, 32), 10), judged=False)
    received = {name: value.clone() for name, value in nets.tensors(model).items()}
    generator, held = dict(model.generator.named_parameters()), torch.tensor([1, 4, 4, 9])
    adam = Adam(3e-4, betas=(0.5, 0.999))
    for step in range(3):
        z = torch.randn(4, 100, generator=torch_generator(0, "z", step))
        loss = model.generator(z, held).square().mean()
        adam.step(generator, dict(zip(generator, torch.autograd.grad(loss, list(generator.values())), strict=True)))
    sent = {n: v for n, v in nets.tensors(model).items() if n.startswith(("generator.", "classifier."))}
    result = classes_held(model, received, sent)
    assert result is not None and result.nonzero().flatten().tolist() == [1, 4, 9]


def test_uploads_without_a_last_layer_say_nothing() -> None:
    net = small()
    assert classes_held(net, nets.tensors(net), {"extractor.0.weight": torch.zeros(6, 1, 3, 3)}) is None
    _, x, y = digits()
    assert IG().presence([seen_by(net, x[:1], y[:1], 1)], net) == [None]


# --- grants ---

RUN: dict[str, Any] = {
    "method": "fedsplit", "dataset": "digits", "net": "mlp", "image_size": 8, "clients": 2, "rounds": 1,
        "local_epochs": 3,
    "lr": 0.05, "batch_size": 64, "split": "dirichlet", "engine": "inproc", "images": 2, "audit_rounds": "0,last",
}  # fmt: skip
BRIEF = tuple(
    f"fedcg.{assignment}"
    for assignment in ("search_iterations=2", "surrogates=1", "surrogate_epochs=1", "decoder_epochs=1", "width=8")
)


def audited(folder: Path, **details: Any) -> tuple[Path, dict[int, dict[str, Any]]]:
    """A run's folder, and its audit's entries by round."""
    whole.run(Experiment(**{**RUN, **details}, out=folder))
    return folder, {entry["round"]: entry for entry in json.loads((folder / "result.json").read_text())["audit"]}


def jobs(folder: Path) -> list[AttackJob]:
    """What the run's auditor asks for."""
    run_plan, task, _ = whole.check(dataclasses.replace(whole.stored(folder), out=folder), new=False)
    auditor = Auditor(*clients_and_audit(run_plan), task, folder, folder / "again")
    return [job for probe_set in auditor.probe_sets() for job in auditor.jobs(probe_set)]


@pytest.mark.slow
def test_nothing_is_granted_or_recorded_that_no_attack_declares(tmp_path: Path) -> None:
    folder, entries = audited(tmp_path / "run", attack=("analytic",))
    requested = jobs(folder)
    assert requested and all(job.public is None and not job.start and not job.uploads for job in requested)
    assert not list((folder / "again").rglob("public*"))
    assert Recordings(folder / "observations").update_lines(1) == []
    assert all(entry["label_presence"] is None for entry in entries.values())
    assert not any("public" in words or "began" in words for entry in entries.values() for words in entry["granted"])


@pytest.mark.slow
def test_what_is_declared_is_granted_in_words_and_files(tmp_path: Path) -> None:
    folder, entries = audited(tmp_path / "run", attack=("fedcg",), set=BRIEF)
    requested = jobs(folder)
    by_round = {job.probe_set.round: job for job in requested if job.probe_set.control == "target"}
    assert by_round[0].start and by_round[1].start and not by_round[0].uploads and len(by_round[1].uploads) == 2
    assert [line["round"] for line in Recordings(folder / "observations").update_lines(1)] == [1, 1]
    easy = next(job for job in requested if job.probe_set.control == "easy")
    assert not easy.start and not easy.uploads and easy.public == by_round[1].public
    assert by_round[1].public is not None
    tensors = load_file(by_round[1].public[0])
    assert tensors["samples"].dtype == torch.uint8 and tensors["samples"].shape == (by_round[1].public[1], 1, 8, 8)
    assert all(entry["failure_reason"] is None for entry in entries.values())
    words = {r: " | ".join(entry["granted"]) for r, entry in entries.items()}
    assert all(f"{by_round[1].public[1]:,} public examples" in text for text in words.values())
    assert "(extractor) began, which is what they are now" in words[0] and "not granted: the client's" not in words[0]
    assert "began, which they are no longer" in words[1] and "in whose place it puts" in words[1]
    assert "what 2 clients uploaded" in words[1] and "uploaded" not in words[0]
    assert entries[0]["adaptive"] and not entries[1]["adaptive"]
    presence = entries[1]["label_presence"]
    assert entries[0]["label_presence"] is None and presence["clients"] == 2
    assert 0.5 <= presence["null"] <= 1 and presence["correct"] >= 0.5
    assert "Which classes a client holds" in (folder / "report.html").read_text()


@pytest.mark.parametrize("common", [True, False])
def test_the_granted_start_is_what_clients_start_with_if_they_start_alike(common: bool) -> None:
    chosen = "common" if common else "independent"
    experiment = Experiment(**{**RUN, "attack": ("fedcg",), "set": (f"fedsplit.start={chosen}",)})
    run_plan, task, _ = whole.check(experiment)
    probe_set = ProbeSet("target", 0, "", 1, 1, "target")
    named = {"fedcg": FedCGInversion()}
    planner = JobPlanner(*clients_and_audit(run_plan), task, Path("none"), named, lambda _: None, lambda: ("file", 3))
    assert planner._beside("fedcg", dataclasses.replace(probe_set, point="example"), set())["start"] is common
    job = AttackJob("fedcg", probe_set, (), Path("none"), {}, (1, 8, 8), 10, (0.5,), (0.5,), start=common)
    result = _start(job, run_plan.client.with_input_space(job.shape, job.classes), torch.device("cpu"))
    clients = [ClientContext(run_plan.client, task, p, 1, None, None).fresh_model() for p in (0, 1)]
    given = [{n: v for n, v in nets.tensors(c).items() if n.startswith("extractor.")} for c in clients]
    if common:
        assert result is not None and set(result) == set(given[0])
        assert all(torch.equal(result[n], c[n]) for c in given for n in result)
    else:
        assert result is None and not any(torch.equal(given[0][n], given[1][n]) for n in given[0])


@pytest.mark.parametrize(("start", "server_round", "adaptive"), [(True, 0, True), (True, 2, False), (False, 0, False)])
def test_only_a_start_before_training_leaves_nothing_hidden(start: bool, server_round: int, adaptive: bool) -> None:
    experiment = Experiment(method="fedsplit", net="lenet5", dataset="digits")
    probe_set = ProbeSet("target", server_round, "", 1, 1, "target")
    job = AttackJob("fedcg", probe_set, (), Path("none"), {}, (1, 32, 32), 10, (0.5,), (0.5,), start=start)
    threat_model = threat_model_of(*clients_and_attacks(plan(experiment)), job, FedCGInversion(), False)
    assert threat_model.adaptive is adaptive
    job = dataclasses.replace(job, start=False)
    assert threat_model_of(*clients_and_attacks(plan(experiment)), job, IG(), False).adaptive is False


@pytest.mark.parametrize(("method", "informed"), [("fedavg", False), ("fedavg", True), ("fedsplit", True)])
def test_it_is_static_where_it_leaves_something_unused(method: str, informed: bool) -> None:
    experiment = Experiment(
        method=method, net="lenet5", dataset="digits", defence="dp_gaussian" if informed else "none"
    )
    probe_set = ProbeSet("target", 0, "", 1, 1, "target")
    details: dict[str, Any] = {"start": method == "fedsplit", "adaptive": informed}
    job = AttackJob("fedcg", probe_set, (), Path("none"), {}, (1, 32, 32), 10, (0.5,), (0.5,), **details)
    threat_model = threat_model_of(*clients_and_attacks(plan(experiment)), job, FedCGInversion(), informed)
    assert not threat_model.adaptive and any(words.startswith("not made use of: ") for words in threat_model.granted)


def test_many_private_tensors_are_named_by_their_parts() -> None:
    run_plan = plan(Experiment(method="fedcg", dataset="digits", clients=3, split="iid", attack=("fedcg",)))
    job = AttackJob(
        "fedcg", target_probe_set(run_plan.experiment.points[0], 1), (), Path(), {}, (1, 32, 32), 10, (0.5,), (0.5,)
    )
    message = threat_model_of(
        *clients_and_attacks(run_plan), job, run_plan.audit.reconstructions["fedcg"], defended=False
    ).granted
    (private,) = (line for line in message if line.startswith("not granted: the client's private tensors"))
    assert "(extractor.*, discriminator.*)" in private
