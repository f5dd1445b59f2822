"""Methods on a pretrained network: rounds against loops, and that only what is trained is sent."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, cross_entropy, linear, relu

from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.tensor_names import matches
from flfw.inversion.closed_form.linear import read
from flfw.nets import running_statistics
from flfw.nets.backbones.architectures import VARIABLE
from flfw.nets.backbones.freezing import digest, frozen
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.training.per_example import PerExample
from flfw.plans.run_plan import plan
from tests.support import rounds, tiny_backbone

_GENERATED = 2 * 5  # tensors of two adapters
ADAPTER = ("bn1.weight", "bn1.bias", "conv.weight", "bn2.weight", "bn2.bias")
STAGES = ("stage1", "stage2")


def asked(small: Experiment, method: str, train: str, *settings: str, **changes: object) -> Experiment:
    given = {"net": tiny_backbone.NAME, "split": "iid", "clients": 2, "batch_size": 40, "lr": 0.05, "trainable": train}
    return dataclasses.replace(small, method=method, set=settings, **{**given, **changes})  # type: ignore[arg-type]


def scores(w: Mapping[str, Tensor], statistics: Mapping[str, Tensor], x: Tensor, frozen_norm: bool = False) -> Tensor:
    """The tiny network with its adapters, written out.

    Args:
        w: the body under ``stage1.0.weight`` and so on, the adapters under ``stage1.bn1.weight``, the classifier.
        statistics: running statistics of the adapters, changed in place.
        x: network inputs.
        frozen_norm: whether BatchNorm of adapters has the statistics 0 and 1.
    """

    def norm(name: str, x: Tensor) -> Tensor:
        if frozen_norm:
            zeros = x.new_zeros(x.shape[1])
            return batch_norm(x, zeros, zeros + 1, w[f"{name}.weight"], w[f"{name}.bias"])
        kept = [statistics[f"{name}.running_{what}"] for what in ("mean", "var")]
        return batch_norm(x, *kept, w[f"{name}.weight"], w[f"{name}.bias"], training=True)

    x = x.expand(-1, 3, -1, -1)
    for stage, stride, padding in zip(STAGES, (2, 1), (1, 0), strict=True):
        x = conv2d(x, w[f"{stage}.0.weight"], w[f"{stage}.0.bias"], stride, padding)
        running = (w[f"{stage}.1.running_mean"], w[f"{stage}.1.running_var"])
        x = relu(batch_norm(x, *running, w[f"{stage}.1.weight"], w[f"{stage}.1.bias"]))
        inner = conv2d(norm(f"{stage}.bn1", x), w[f"{stage}.conv.weight"])
        x = norm(f"{stage}.bn2", x + inner)
    return linear(x.mean((2, 3)), w["classifier.weight"], w["classifier.bias"])


def constants(model: nn.Module) -> dict[str, Tensor]:
    """The body's numbers under its own names."""
    part = "extractor.body."
    bodies = {n.removeprefix(part).replace(".layer.", "."): v for n, v in frozen(model).items() if n.startswith(part)}
    return {name: value for name, value in bodies.items() if ".adapter." not in name}


def fresh_statistics(model: nn.Module) -> dict[str, Tensor]:
    return {
        name.removeprefix("extractor.body.").replace(".adapter.", "."): value.clone()
        for name, value in model.state_dict().items()
        if ".running_" in name
    }


def lpm_loop(experiment: Experiment, partition: int, clip: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Steps A and B of the paper; all tensors under flfw's names, and the running statistics."""
    model = rounds.fresh(experiment)
    w = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    body, statistics = constants(model), fresh_statistics(model)
    assert isinstance(model, GeneratedNet)
    shapes = list(model.hypernet.targets.values())

    def generated() -> dict[str, Tensor]:
        h = relu(w["hypernet.trunk.weight"] @ w["embedding"] + w["hypernet.trunk.bias"])
        heads = [w[f"hypernet.heads.{k}.weight"] @ h + w[f"hypernet.heads.{k}.bias"] for k in range(_GENERATED)]
        names = [f"{stage}.{name}" for stage in STAGES for name in ADAPTER]
        return {name: head.view(shape) for name, head, shape in zip(names, heads, shapes, strict=True)}

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(scores({**body, **generated(), **w}, statistics, x), y)

    head, hyper = ([v for n, v in w.items() if n.startswith(part)] for part in ("classifier.", "hypernet."))
    step_a = torch.optim.SGD(head, lr=0.1, momentum=0.5, weight_decay=5e-4)
    for x, y in rounds.batches(experiment, partition, "classifier", 1, 1):
        rounds.descend(step_a, loss(x, y))
    step_b = torch.optim.SGD([*hyper, w["embedding"]], lr=experiment.lr, momentum=0.5, weight_decay=5e-4)
    for x, y in rounds.batches(experiment, partition, "hypernetwork", experiment.local_epochs, 1):
        step_b.zero_grad()
        loss(x, y).backward()
        nn.utils.clip_grad_norm_(hyper, clip)
        nn.utils.clip_grad_norm_([w["embedding"]], clip)
        step_b.step()
    return {name: value.detach() for name, value in w.items()}, statistics


@pytest.mark.slow
@pytest.mark.parametrize("step", ["low_rank", "dense"])
def test_hyperfl_lpm_equals_a_loop(small: Experiment, tmp_path: Path, step: str) -> None:
    settings = ("embedding=4", "hidden=6", "clip=0.1", f"step={step}", "head_init=torch")
    experiment = asked(small, "hyperfl_lpm", "adapter", *settings, local_epochs=2)
    with rounds.exactly():
        start = rounds.fresh(experiment).state_dict()
        result = rounds.play(experiment, tmp_path)
        states = [lpm_loop(experiment, partition, 0.1) for partition in range(2)]
        expected = rounds.mean([{n: v for n, v in w.items() if n.startswith("hypernet.")} for w, _ in states])
    assert rounds.error(result.broadcasts[1], expected, start) < 1e-10
    for client, (state, statistics) in zip(result.clients, states, strict=True):
        kept = client.model.state_dict()
        for name in ("embedding", "classifier.weight", "classifier.bias"):
            torch.testing.assert_close(kept[name], state[name], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(fresh_statistics(client.model), statistics, rtol=1e-9, atol=1e-11)
        assert set(client.private_names) == {n for n in kept if not n.startswith("hypernet.")}


@pytest.mark.parametrize("train", ["linear_probe", "adapter", "lora", "full"])
@pytest.mark.parametrize("method", ["fedavg", "local_only"])
def test_a_round_equals_a_loop_and_sends_what_is_trained(
    small: Experiment, tmp_path: Path, method: str, train: str
) -> None:
    experiment = asked(small, method, train, local_epochs=2)
    with rounds.exactly():
        nets = [rounds.fresh(experiment) for _ in range(2)]
        start = {name: value.clone() for name, value in nets[0].state_dict().items()}
        body = digest(frozen(nets[0]))
        for partition, net in enumerate(nets):
            optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5, weight_decay=5e-4)
            for x, y in rounds.batches(experiment, partition, "batches", 2, 1):
                rounds.descend(optimiser, cross_entropy(net.train()(x), y))
        result = rounds.play(experiment, tmp_path)
    states = [net.state_dict() for net in nets]
    for client, state in zip(result.clients, states, strict=True):
        assert rounds.error(client.model.state_dict(), state, start) < 1e-10
        assert digest(frozen(client.model)) == body
    kept = [name for name in running_statistics(nets[0]) if ".adapter." in name]
    assert bool(kept) == (train == "adapter")
    if method == "local_only":
        assert result.broadcasts[1] == {} and not any(update.tensors for update in result.uploads[0])
        return
    expected = rounds.mean([{n: v for n, v in state.items() if n not in kept} for state in states])
    assert rounds.error(result.broadcasts[1], expected, start) < 1e-10
    sent = set(result.uploads[0][0].tensors)
    assert sent == set(start) - set(kept)
    small_parts = (".adapter.", ".down.", ".up.", "classifier.")
    assert all(any(part in name for part in small_parts) for name in sent) == (train != "full")
    assert set(result.clients[0].private_names) == set(kept)


def test_the_loop_of_the_test_is_the_network(small: Experiment) -> None:
    net = rounds.fresh(asked(small, "fedavg", "adapter")).train()
    names = {n.removeprefix("extractor.body.").replace(".adapter.", "."): p for n, p in net.named_parameters()}
    x = torch.randn(5, 1, 8, 8)
    expected = scores({**constants(net), **names}, fresh_statistics(net), x)
    torch.testing.assert_close(net(x), expected)


def test_generated_adapters_that_are_never_loaded_change_no_score(small: Experiment) -> None:
    settings = ("embedding=4", "hidden=6")
    model = rounds.fresh(asked(small, "hyperfl_lpm", "adapter", *settings, variant="authors")).eval()
    x = torch.randn(5, 1, 8, 8)
    before = model(x)
    with torch.no_grad():
        for head in model.hypernet.heads:  # type: ignore[union-attr]
            head.bias += 1
    assert torch.equal(model(x), before)
    model(x).square().sum().backward()
    assert model.hypernet.heads[2].bias.grad.abs().max() > 0  # type: ignore[union-attr, index]
    loaded = rounds.fresh(asked(small, "hyperfl_lpm", "adapter", *settings)).eval()
    before = loaded(x)
    with torch.no_grad():
        loaded.hypernet.heads[0].bias += 1  # type: ignore[union-attr, index]
    assert not torch.equal(loaded(x), before)


def test_a_frozen_projection_is_not_trained(small: Experiment) -> None:
    experiment = asked(small, "hyperfl_lpm", "adapter", net="resnet18_imagenet")
    free = plan(experiment).client.model.state_dict()
    fixed = plan(dataclasses.replace(experiment, set=("frozen_projection=true",))).client.model.state_dict()
    assert set(free) - set(fixed) == {"classifier.0.weight", "classifier.0.bias"}


def test_an_identity_start_generates_adapters_that_change_little(small: Experiment) -> None:
    settings = ("embedding=4", "hidden=6")
    changed = {}
    for init in ("identity", "torch"):
        experiment = asked(small, "hyperfl_lpm", "adapter", *settings, f"head_init={init}", "TINY.adapter_norm=frozen")
        model = rounds.fresh(experiment).eval()
        plain = rounds.fresh(asked(small, "fedavg", "linear_probe")).eval()
        x = torch.randn(5, 1, 8, 8)
        features = model.features(x, model.extractor_weights()).detach()  # type: ignore[operator]
        expected = plain.extractor(x)  # type: ignore[operator]
        changed[init] = float((features - expected).norm() / expected.norm())
    assert changed["identity"] < 0.1 < 0.3 < changed["torch"]


@pytest.mark.slow
def test_a_hypernetwork_has_the_papers_size(small: Experiment) -> None:
    for net, numbers in (("vit_small", 30.4e6), ("resnet18_imagenet", 45.4e6)):
        run_plan = plan(asked(small, "hyperfl_lpm", "adapter", net=net))
        sent = [
            p.numel()
            for n, p in run_plan.client.model.named_parameters()
            if matches(n, run_plan.client.sharing.uploads)
        ]
        assert sum(sent) == pytest.approx(numbers, rel=2e-3)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"method": "hyperfl_lpm", "trainable": "linear_probe"}, "Expected a pretrained network with "
        "--trainable adapter"),
        ({"method": "hyperfl_lpm", "net": "cnn1", "trainable": "auto"}, "Expected a pretrained network with "
        "--trainable"),
        ({"net": "cnn1"}, "Expected trainable=full for net=cnn1, which is not pretrained, got trainable=adapter."),
        ({"method": "hyperfl_lpm", "trainable": "lora"}, "Expected a pretrained network with --trainable adapter"),
        ({"net": "cnn1", "trainable": "lora"}, "Expected trainable=full for net=cnn1, which is not pretrained"),
        ({"set": ("TINY.lora_rank=0",)}, "Expected lora_rank >= 1, got lora_rank=0."),
        ({"set": ("TINY.lora_alpha=0",)}, "Expected 0 < lora_alpha < inf, got lora_alpha=0.0."),
        (
            {"trainable": "lora", "set": ("TINY.lora_layers=attention",)},
            "Expected attention in the body, or lora_layers=all for --trainable lora",
        ),
        ({"set": ("TINY.places=rows",)}, "Expected TINY.places among own, stages, blocks, got TINY.places=rows."),
        ({"set": ("TINY.place=blocks",)}, "Expected a field of TINY among places, adapter_init, adapter_norm"),
        ({"norm": "group"}, "which is pretrained, got init=torch, norm=group."),
        ({"weights_sha256": "0" * 64}, "with the SHA-256 0000"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(small: Experiment, changes: dict[str, object], text: str) -> None:
    experiment = dataclasses.replace(asked(small, "fedavg", "adapter"), **changes)  # type: ignore[arg-type]
    with pytest.raises(InputError) as refusal:
        plan(experiment)
        rounds.fresh(plan(experiment).experiment)
    assert text in str(refusal.value)


def test_the_run_names_the_hash_of_its_weights(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = plan(asked(small, "fedavg", "linear_probe")).experiment
    assert len(chosen.weights_sha256) == 64 and "weights-sha256" in chosen.decisive
    assert "weights" not in chosen.decisive
    monkeypatch.setenv(VARIABLE, "/nowhere.pth")
    assert plan(chosen).experiment == chosen  # a site is told the hash, and looks for no file here
    with pytest.raises(InputError, match=r"Expected weights of net=tiny in /nowhere.pth, got no such file"):
        rounds.fresh(chosen)


@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_the_server_reads_the_adapters_gradient_off_the_hypernetworks(
    small: Experiment, tmp_path: Path, norm: str
) -> None:
    settings = ("embedding=4", "hidden=6", f"TINY.adapter_norm={norm}")
    experiment = asked(small, "hyperfl_lpm", "adapter", *settings, local_epochs=2)
    with rounds.exactly():
        client = rounds.client(experiment, tmp_path, 0)
        received = {n: v.numpy().copy() for n, v in rounds.fresh(experiment).state_dict().items() if "hypernet" in n}
        client.load_received(received, 0)
        net = client.model
        assert isinstance(net, GeneratedNet)
        x, y = torch.rand(3, 1, 8, 8), torch.tensor([1, 4, 4])
        theta = {name: value.detach().requires_grad_() for name, value in net.extractor_weights().items()}
        loss = cross_entropy(net.classifier(net.features(client.ctx.task.inputs.normalise(x), theta)), y)
        expected = dict(zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True))
        sent = client.gradient(x, y)
        known = {name: torch.tensor(value) for name, value in received.items()}
        reading = read(net.hypernet.targets, known, sent)
    torch.testing.assert_close(reading.gradient, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(reading.weights, theta, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize("method", ["fedavg", "hyperfl_lpm"])
def test_the_attackers_model_of_a_client_gives_its_message(
    small: Experiment, tmp_path: Path, method: str, norm: str
) -> None:
    settings = ("embedding=4", "hidden=6") if method == "hyperfl_lpm" else ()
    experiment = asked(small, method, "adapter", *settings, f"TINY.adapter_norm={norm}")
    run_plan = plan(experiment)
    client = rounds.client(experiment, tmp_path, 0)
    received = {n: v.clone() for n, v in rounds.fresh(experiment).state_dict().items()}
    client.load_received({n: received[n].numpy().copy() for n in client.download_names}, 0)
    x, y = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([1, 4, 4])
    private = {n: v.clone() for n, v in client.model.state_dict().items() if n in client.private_names}
    sent = client.gradient(x, y)
    granted = {n: received[n] for n in client.download_names}
    victim = run_plan.client.method.victim_model(
        rounds.fresh(experiment), granted, client.ctx.task.inputs, run_plan.client.settings
    )
    observed, constants = victim.observed(sent)
    guessed = victim.gradient(x, y, {n: private[n] for n in victim.unknown}, constants)
    torch.testing.assert_close(guessed, observed, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("train", ["adapter", "lora"])
def test_the_gradients_of_single_examples_reach_adapters_through_a_frozen_body(small: Experiment, train: str) -> None:
    net = rounds.fresh(asked(small, "fedavg", train, "TINY.adapter_norm=frozen")).train()
    for name, parameter in net.named_parameters():
        if name.endswith(".up.weight"):
            nn.init.normal_(parameter)  # at first 0
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 2])
    clipped = PerExample(net).clipped_sum(lambda: cross_entropy(net(x), y, reduction="none"), 1e6)
    loss = cross_entropy(net(x), y, reduction="sum")
    expected = dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(net.parameters())), strict=True))
    torch.testing.assert_close(clipped.sums, expected, rtol=1e-4, atol=1e-5)
    by_batch = rounds.fresh(asked(small, "fedavg", "adapter"))
    with pytest.raises(
        InputError, match=r"stage1\.adapter\.bn1; its output depends .*; adapter_norm=frozen is the way"
    ):
        PerExample(by_batch)


@pytest.mark.parametrize("method", ["fedprox", "fedper", "fednova", "local_only"])
def test_statistics_of_adapters_stay_with_every_method_s_clients(small: Experiment, method: str) -> None:
    run_plan = plan(asked(small, method, "adapter"))
    kept = [name for name in run_plan.client.model.state_dict() if ".running_" in name or name.endswith("tracked")]
    assert len(kept) == 12
    for patterns in (run_plan.client.sharing.downloads, run_plan.client.sharing.uploads):
        assert not any(matches(name, patterns) for name in kept)
        assert bool(patterns) == (method != "local_only")
