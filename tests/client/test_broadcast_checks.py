"""Checks of a broadcast: honest networks pass, crafted ones do not, and one that knows the checks does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from flfw import data, nets
from flfw.attacks.imprint import Imprint, ImprintSettings
from flfw.client.broadcast_checks import broadcast_alarms, differently_served, digest, parallel, zeros_at_first
from flfw.experiment import Experiment
from flfw.inversion.client_models.victim import PlainVictim
from flfw.messages.sharing import select_shared
from flfw.nets.backbones.adapters import LoraLayers
from flfw.nets.backbones.architectures import RANDOM, VARIABLE
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.net import Tensors
from flfw.plans.run_plan import plan
from flfw.recording.observation import Knowledge
from flfw.rng import initialising, torch_generator
from flfw.strategies.scaffold import ControlledNet, Scaffold
from research.measurements.malicious_hypernetwork import imprint, serving
from tests.support.attackable import digit_inputs, digits, fresh_net, generators, gradient, seen
from tests.support.crafted_backbone import craft_adapters, craft_body
from tests.support.method_rounds import METHODS, PRETRAINED, by_method, initial_tensors

LARGE = ("alexnet", "resnet18")
SHAPES = {"cnn1": (1, 28, 28), "lenet5": (1, 32, 32), "alexnet": (3, 64, 64), "bert_tiny": (32,)}
SHAPES |= {"gpt_next": (32,), "gpt_tiny": (32,)}


def arrays(tensors: Tensors) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in tensors.items()}


def drawn(shape: tuple[int, ...]) -> np.ndarray:
    return torch.randn(shape, generator=torch_generator(0, "drawn")).numpy()


BUILT_IN = [name for name in nets.names() if nets.card(name).architecture is None]


# --- honest networks ---


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in LARGE)) for n in BUILT_IN])
def test_a_fresh_network_gives_no_alarm(name: str) -> None:
    for init in ("torch", "glorot") if name in ("cnn1", "lenet", "mlp", "linear") else ("torch",):
        with initialising(0, "net"):
            net = nets.build(name, SHAPES.get(name, (3, 32, 32)), 10, init)
        assert broadcast_alarms(arrays(nets.tensors(net)), zeros_at_first(net)) == []


@pytest.mark.parametrize("method", [name for name in METHODS if name not in PRETRAINED])
def test_the_first_message_of_a_method_gives_no_alarm(method: str, small: Experiment) -> None:
    requested = by_method(small, method)
    fresh = plan(requested).client.build_model()
    assert broadcast_alarms(initial_tensors(requested), zeros_at_first(fresh)) == []


def test_a_trained_network_gives_no_alarm_although_decay_makes_columns_of_constant_pixels_parallel() -> None:
    (x, y), inputs = digits(0, 256, 8), digit_inputs(8)
    net = fresh_net("mlp", inputs.shape)
    steps = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=3e-2)
    for _ in range(400):
        steps.zero_grad()
        cross_entropy(net(inputs.normalise(x)), y).backward()
        steps.step()
    assert broadcast_alarms(arrays(nets.tensors(net))) == []
    columns = net.get_parameter("extractor.1.weight").detach().T
    assert parallel(columns) >= 1  # this is why the share of columns must be large


@pytest.mark.slow
def test_a_hypernetwork_and_adapters_give_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    with initialising(0, "model"):
        generated = GeneratedNet(nets.build("lenet", (1, 8, 8), 10), 4, 16, "fan_in")
    assert broadcast_alarms(arrays(nets.tensors(generated))) == []
    monkeypatch.setenv(VARIABLE, RANDOM)
    with initialising(0, "model"):
        tuned = nets.build("vit_tiny", (3, 32, 32), 10, tuning=nets.Tuning("adapter"))
    assert broadcast_alarms(arrays(dict(tuned.named_parameters())), zeros_at_first(tuned)) == []


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["attention", "all"])
def test_low_rank_products_beside_control_variates_give_no_alarm(
    monkeypatch: pytest.MonkeyPatch, layers: LoraLayers
) -> None:
    monkeypatch.setenv(VARIABLE, RANDOM)
    with initialising(0, "model"):
        tuning = nets.Tuning("lora", nets.AdapterSettings(lora_layers=layers))
        model = ControlledNet(nets.build("vit_tiny", (3, 32, 32), 10, tuning=tuning))
    downloads = Scaffold.shared(model, Scaffold.Settings()).downloads
    sent = arrays(select_shared(nets.tensors(model), downloads))
    zeros = sum(value.size for value in sent.values() if value.ndim > 1 and not value.any())
    assert zeros > 0.7 * sum(value.size for value in sent.values() if value.ndim > 1)
    assert broadcast_alarms(sent, zeros_at_first(model)) == []
    trained = {name: value + (0 if value.any() else 1e-3 * drawn(value.shape)) for name, value in sent.items()}
    assert broadcast_alarms(trained, zeros_at_first(model)) == []


# --- malicious servers ---


@pytest.mark.parametrize("settings", [{}, {"query": "dct"}, {"connection": "added"}, {"bins": 512, "gain": 1.0}])
def test_an_imprint_module_is_noticed(settings: dict[str, object]) -> None:
    net, crafted = _imprinted(Imprint(ImprintSettings(**settings)))  # type: ignore[arg-type]
    assert any("rows parallel" in alarm for alarm in broadcast_alarms(arrays(crafted)))
    assert any("extractor.imposed.measure.weight" in alarm for alarm in broadcast_alarms(arrays(nets.tensors(net))))


def test_a_serving_hypernetwork_is_noticed() -> None:
    with initialising(0, "model"):
        generated = GeneratedNet(nets.build("mlp", (1, 8, 8), 10), 4, 16, "fan_in")
    honest = {n: v for n, v in nets.tensors(generated).items() if n.startswith("hypernet.")}
    extractor = fresh_net("mlp", (1, 8, 8)).extractor
    sent = serving(honest, imprint(extractor, torch.randn(200, generator=torch_generator(0, "means"))))
    assert broadcast_alarms(arrays(honest)) == []
    words = "100% of the numbers are in matrices of zeros that do not begin so"
    assert broadcast_alarms(arrays(sent), zeros_at_first(generated)) == [words]


def test_zeros_in_one_layer_are_noticed_beside_tensors_that_begin_so() -> None:
    """As where one layer alone is to serve the server, beside control variates, which are half of the numbers."""
    fresh = ControlledNet(fresh_net("mlp", (1, 8, 8)))
    sent = {name: value.clone() for name, value in nets.tensors(fresh).items()}
    assert broadcast_alarms(arrays(sent), zeros_at_first(fresh)) == []
    sent["net.extractor.1.weight"].zero_()
    whole = 64 * 64 + 64 * 64 + 64 * 10
    words = f"{64 * 64 / whole:.0%} of the numbers are in matrices of zeros that do not begin so"
    assert broadcast_alarms(arrays(sent), zeros_at_first(fresh)) == [words]


@pytest.mark.slow
def test_crafted_adapters_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, RANDOM)
    with initialising(0, "model"):
        net = nets.build("vit_tiny", (3, 32, 32), 10, tuning=nets.Tuning("adapter"))
    save_file(craft_body(net.get_submodule("extractor.body")), tmp_path / "crafted.safetensors")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "crafted.safetensors"))
    with initialising(0, "model"):
        net = nets.build("vit_tiny", (3, 32, 32), 10, tuning=nets.Tuning("adapter"))
    public = torch.randn(100, 3, 32, 32, generator=torch_generator(0, "public"))
    crafted = craft_adapters(net.get_submodule("extractor.body"), public, (20, 21, 22)).tensors
    alarms = broadcast_alarms(arrays(crafted))
    assert any("rows parallel" in alarm for alarm in alarms) and any("rows of zeros" in alarm for alarm in alarms)


def test_a_server_that_knows_the_checks_evades_them_with_noise_and_still_reads_images() -> None:
    """The limit of the checks: 5 % of noise on both layers and a gain of 1. Readings are then no longer exact."""
    attack = Imprint(ImprintSettings(gain=1.0))
    net, crafted = _imprinted(attack)
    rng = torch_generator(0, "noise")
    noisy = {
        name: value * (1 + 0.05 * torch.randn(value.shape, generator=rng)) if name.endswith("weight") else value
        for name, value in crafted.items()
    }
    net.load_state_dict(noisy, strict=False)
    assert broadcast_alarms(arrays(nets.tensors(net))) == []
    inputs, read = digit_inputs(8), 0
    for first in range(0, 80, 8):
        x, y = digits(first, 8, 8)
        received = nets.tensors(net)
        knowledge = Knowledge(PlainVictim(net, received, ("*",), inputs), 8, None)
        (result,) = attack.run([seen(gradient(net, inputs, x, y), received)], [knowledge], generators(1))
        distance = (result.samples[None] - x[:, None]).flatten(2).square().mean(2).min(1).values
        read += int((distance < 10**-2.5).sum())  # 25 dB
    assert read >= 20


def _imprinted(attack: Imprint) -> tuple[nets.Net, Tensors]:
    """A network with the attack's module, and the tensors that its server sends for it."""
    inputs = digit_inputs(8)
    net = attack.network(fresh_net("mlp", inputs.shape))
    public = torch.tensor(data.load("digits", None, 8).test_x).float() / 255
    crafted = attack.crafted(nets.tensors(net), inputs.normalise(public))
    net.load_state_dict(crafted, strict=False)
    return net, crafted


# --- by hand ---


def test_alarms_by_hand() -> None:
    sound = torch.randn(20, 16, generator=torch_generator(0, "by hand"))
    assert broadcast_alarms({"w": sound.numpy(), "b": np.zeros(3, np.float32), "n": np.array(3)}) == []
    rows = sound.clone()
    rows[1:5] = -2 * rows[:1]  # opposite and longer: five parallel rows have four neighbours
    assert broadcast_alarms({"w": rows.numpy()}) == ["w has 4 of 20 rows parallel to another"]
    dead = sound.clone()
    dead[:5] = 0
    assert broadcast_alarms({"w": dead.numpy()}) == ["w has 5 of 20 rows of zeros"]
    assert broadcast_alarms({"w": 20 * sound.numpy()})[0].startswith("w has a gain of ")
    assert broadcast_alarms({"w": np.full((20, 16), np.nan, np.float32)})


def test_clients_compare_hashes() -> None:
    one, other = {"w": np.zeros((2, 2))}, {"w": np.zeros((4, 1))}
    assert digest(one) == digest({"w": np.zeros((2, 2))}) != digest(other)
    assert len(digest(one)) == 64  # a server that tries 2^32 messages would find two with the same 16 digits
    assert differently_served({0: "a", 1: "b", 2: "a"}) == [1]
    assert differently_served({0: "a", 1: "b"}) == [0, 1] and differently_served({0: "a"}) == []
    assert differently_served({}) == []
