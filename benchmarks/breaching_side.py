"""Other side of the comparison, `breaching` 0.1.2 on a given problem: ``python breaching_side.py FOLDER``.

It runs in a separate environment (`breaching_env`) and imports nothing of this project. It reads FOLDER/problem.json
and FOLDER/problem.safetensors and writes FOLDER/answer.json and FOLDER/answer.safetensors. The attack is breaching's
`OptimizationBasedAttacker` under one of its configurations, called as its examples do, one victim at a time. Below, V
victims have B images (C, H, W) each; P is a parameter's name, Q a buffer's.

problem.json (every field is needed)
    mode            "objective", "speed" or "attack".
    config          "invertinggradients", with the objective below, or "seethroughgradients" (mode "attack"), of which
                    only the iterations and the scale are set: the fields from lr to box are then not used.
    scale           weight of half of the squared distance under "seethroughgradients"; null: their default, 1e-4.
    network         "lenet" (their LeNetZhu; its last layer fitted to H x W), "convnet64" (their ConvNet; 32 x 32) or
                    "cnn2" (HyperFL's CNN 2, which they lack: `cnn2` below; 32 x 32) or
                    "resnet18" (torchvision's, with FedCG's sigmoid after half of it; 32 x 32) or
                    "shallow" (two convolutions with BatchNorm: `shallow` below).
    shape, classes  [C, H, W] and the number of labels.
    mean, std       per channel; images are normalised by them, and the box [0, 1] is meant before that.
    parameters      the names P, and
    buffers         the names Q, in the order of the network's own; breaching fills its network by position.
    iterations, lr  of Adam; breaching's defaults are 24,000 and 0.1.
    signed          whether Adam follows the gradient's sign ("hard").
    decay           whether the step size becomes a tenth after N // 2.667, N // 1.6 and N // 1.142 of N iterations
                    (for 24,000: 8998, 14,999 and 21,015; for 1,000: 374, 624 and 875).
    tv              weight of the total variation, >= 0; their default is 0.2.
    box             whether each step ends with a projection onto the box; the start itself is not projected.
    training        whether the network normalises a guess by its own batch; else by the buffers.
    threads         of PyTorch within an operation.
    device          "cpu" or "cuda", where TensorFloat-32 is off, as on the other side.
    warmup          iterations of an attack on the first victim that are not timed ("speed").
    every           keep the guess before every so many iterations ("attack"); 0 keeps none.

problem.safetensors (float32; labels int64)
    weights.P, weights.Q  the network's state; breaching gets no buffers if ``training``.
    observed.P            (V, *shape of P) the gradients seen.
    revealed.Q            (V, *shape of Q) the buffers that each user sent, if any: the statistics of its own batch.
    labels                (V, B).
    start                 (V, B, C, H, W) the first guess, normalised.

What "invertinggradients" minimises, over the normalised guess z:
    1 - <g(z), g> / (|g(z)| |g|) + tv * mean(|z[.., i+1, j] - z[.., i, j]| + |z[.., i, j+1] - z[.., i, j]|)
with g(z) the gradient of the mean cross-entropy, all parameters as one vector, nothing added to the norms. The mean is
over all B * C * H * W places, where z is 0 beyond the last row and the last column; each modulus has 1e-8 added.

answer.json
    breaching, torch, threads       versions, and the threads used.
    seconds                         per victim, of the whole call ("speed", "attack").
    image_iterations_per_second     V * B * iterations / sum of the seconds ("speed", "attack").
    distance                        per victim, 1 - cos at the image returned ("speed", "attack").
    trace_iterations, trace_seconds the iterations done before each kept guess, [T], and the seconds since the attack
                                    began, [V][T] ("attack" with every > 0).

answer.safetensors
    objective, prior  (V,) the objective at the start, and the part of it that is total variation ("objective").
    gradient          (V, B, C, H, W) the objective's gradient at the start, without its sign taken ("objective").
    images            (V, B, C, H, W) what breaching returns: the guess after the step that began where the objective
                      was lowest, not the last guess ("speed", "attack"). Normalised.
    trace             (V, T, B, C, H, W) the kept guesses, normalised.
"""

import json
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import breaching  # pyright: ignore[reportMissingImports]  # in a separate environment
import torch
import torchvision
from breaching.attacks import OptimizationBasedAttacker  # pyright: ignore[reportMissingImports]
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class BreachingProblem:
    """The fields of problem.json."""

    mode: str
    network: str
    shape: list[int]
    classes: int
    mean: list[float]
    std: list[float]
    parameters: list[str]
    buffers: list[str]
    iterations: int
    lr: float
    signed: bool
    decay: bool
    tv: float
    box: bool
    threads: int
    warmup: int
    every: int
    config: str
    training: bool
    scale: float | None
    device: str

    def __post_init__(self) -> None:
        _require(self.mode in ("objective", "speed", "attack"), "mode objective, speed or attack", mode=self.mode)
        configs = ("invertinggradients", "seethroughgradients")
        _require(self.config in configs, f"config {' or '.join(configs)}", config=self.config)
        known = self.network in ("lenet", "convnet64", "cnn2", "resnet18", "shallow")
        _require(known, "network lenet, convnet64, cnn2, resnet18 or shallow", network=self.network)
        fits = self.network in ("lenet", "shallow") or self.shape[1:] == [32, 32]
        _require(fits, f"images of 32 x 32 for {self.network}", shape=self.shape)
        # Their regulariser has the filters of three channels; it can do with fewer of them (`attacker`).
        _require(not self.tv or self.shape[0] <= 3, "at most 3 channels with tv", tv=self.tv, shape=self.shape)
        _require(self.iterations >= 1, "iterations >= 1", iterations=self.iterations)
        _require(self.tv >= 0, "tv >= 0", tv=self.tv)
        _require(self.threads >= 1, "threads >= 1", threads=self.threads)
        _require(self.device in ("cpu", "cuda"), "device cpu or cuda", device=self.device)
        _require(self.every >= 0, "every >= 0", every=self.every)


@final
class Watched(OptimizationBasedAttacker):
    """Their attacker, unchanged, with notes of its guesses, seconds and first gradient.

    Args:
        model, loss, config, setup: as `OptimizationBasedAttacker` takes them.
        every: keep the guess before every so many iterations.
    """

    def __init__(self, model: nn.Module, loss: nn.Module, config: Any, setup: dict[str, Any], every: int) -> None:
        super().__init__(model, loss, config, setup)
        self._every = every
        self._started = time.perf_counter()
        self.guesses: list[Tensor] = []
        self.seconds: list[float] = []
        self.gradient: Tensor | None = None

    def reconstruct(self, *arguments: Any, **named: Any) -> Any:
        """Reconstruct as theirs does; drop the notes of an earlier victim."""
        self.guesses, self.seconds, self._started = [], [], time.perf_counter()
        return super().reconstruct(*arguments, **named)

    def _compute_objective(self, candidate: Tensor, *arguments: Any) -> Any:
        iteration = arguments[-1]
        if iteration % self._every == 0:
            self.guesses.append(candidate.detach().clone())
            self.seconds.append(time.perf_counter() - self._started)
        closure = super()._compute_objective(candidate, *arguments)

        def noted() -> Tensor:
            value = closure()
            assert candidate.grad is not None, "it was searched along"
            self.gradient = candidate.grad.clone()
            return value

        return closure if iteration else noted


def network(problem: BreachingProblem, state: dict[str, Tensor]) -> tuple[nn.Module, nn.Module]:
    """Build their network, with the problem's last layer, and their loss; the values come with each call.

    Raises:
        ValueError: the problem's tensors are not those of the network, in its order.
    """
    data = SimpleNamespace(
        modality="vision", task="classification", name="given", shape=problem.shape, classes=problem.classes
    )
    name = "convnet" if problem.network == "convnet64" else "lenet_zhu"
    model: Any
    model, loss = breaching.cases.construct_model(name, data, pretrained=False)
    if problem.network == "cnn2":
        model = cnn2(problem.shape[0], problem.classes)
    elif problem.network == "resnet18":
        model = torchvision.models.resnet18(weights=None, num_classes=problem.classes)
        model.layer2.append(nn.Sigmoid())
    elif problem.network == "shallow":
        model = shallow(problem.shape, problem.classes)
    elif problem.network == "lenet":
        _, height, width = problem.shape
        features = 12 * -(-height // 4) * -(-width // 4)  # two strides of 2, rounded up
        model.model.fc = nn.Sequential(nn.Linear(features, problem.classes))
    for names, tensors in ((problem.parameters, model.parameters()), (problem.buffers, model.buffers())):
        given, wanted = [tuple(state[name].shape) for name in names], [tuple(tensor.shape) for tensor in tensors]
        _require(given == wanted, f"tensors of shapes {wanted}", given=given)
    return model, loss


def cnn2(channels: int, classes: int) -> nn.Module:
    """Build CNN 2 with plain layers: 32-28-14-12-6-6-3 pixels, features 576 -> 128."""
    layers: list[nn.Module] = []
    for wide, kernel, padding in ((16, 5, 0), (32, 5, 1), (64, 3, 1)):
        layers += [nn.Conv2d(channels, wide, kernel, padding=padding), nn.MaxPool2d(2), nn.LeakyReLU(0.01)]
        channels = wide
    dense = [nn.Flatten(), nn.Linear(64 * 3 * 3, 128), nn.LeakyReLU(0.01), nn.Linear(128, classes)]
    return nn.Sequential(*layers, *dense)


def shallow(shape: list[int], classes: int) -> nn.Module:
    """Build two convolutions of 16 maps with BatchNorm, the second of which halves the sides."""
    first = [nn.Conv2d(shape[0], 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    second = [nn.Conv2d(16, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU()]
    features = 16 * (shape[1] // 2) * (shape[2] // 2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(features, classes))


def attacker(problem: BreachingProblem, model: nn.Module, loss: nn.Module, iterations: int) -> Any:
    """Return their attacker for the problem; a `Watched` one if its guesses or its gradient are needed."""
    config = breaching.get_attack_config(problem.config)
    setup = {"dtype": torch.float, "device": torch.device(problem.device)}
    config.optim.max_iterations = iterations
    if problem.config == "seethroughgradients":
        torch.manual_seed(0)  # of its Langevin noise
        if problem.scale is not None:
            config.objective.scale = problem.scale
        return breaching.attacks.prepare_attack(model, loss, config, setup)
    config.optim.step_size = problem.lr
    config.optim.signed = "hard" if problem.signed and problem.mode != "objective" else None
    config.optim.step_size_decay = "step-lr" if problem.decay else None
    config.optim.boxed = problem.box
    config.regularization.total_variation.scale = problem.tv
    every = 1 if problem.mode == "objective" else problem.every if problem.mode == "attack" else 0
    if every:
        made = Watched(model, loss, config, setup, every)
    else:
        made = breaching.attacks.prepare_attack(model, loss, config, setup)
    for variation in made.regularizers:
        channels = problem.shape[0]
        variation.groups, variation.weight = channels, variation.weight[: 2 * channels]
    return made


@final
class BreachingVictims:
    """Victims with the knowledge that breaching gets of each.

    Args:
        problem: the part that is the same for all.
        tensors: of problem.safetensors.
    """

    def __init__(self, problem: BreachingProblem, tensors: dict[str, Tensor]) -> None:
        # They move the network and the guess to their device, but neither gradients nor labels.
        tensors = {name: value.to(problem.device) for name, value in tensors.items()}
        self._problem, self._tensors = problem, tensors
        self.batch = tensors["labels"].shape[1]
        self._reveals = any(name.startswith("revealed.") for name in tensors)
        self._payload = {
            "parameters": [tensors[f"weights.{name}"] for name in problem.parameters],
            "buffers": None if problem.training else [tensors[f"weights.{name}"] for name in problem.buffers],
            "metadata": SimpleNamespace(modality="vision", shape=problem.shape, mean=problem.mean, std=problem.std),
        }

    def __len__(self) -> int:
        return len(self._tensors["labels"])

    def start(self, victim: int) -> Tensor:
        """Return the first guess (B, C, H, W), normalised."""
        return self._tensors["start"][victim]

    def attack(self, attacker: Any, victim: int) -> tuple[Tensor, float, dict[str, Any]]:
        """Attack one victim: the images (B, C, H, W), the seconds, and breaching's own figures."""
        metadata = {"num_data_points": self.batch, "labels": self._tensors["labels"][victim], "local_hyperparams": None}
        gradients = [self._tensors[f"observed.{name}"][victim] for name in self._problem.parameters]
        sent = [self._tensors[f"revealed.{name}"][victim] for name in self._problem.buffers] if self._reveals else None
        shared = {"gradients": gradients, "buffers": sent, "metadata": metadata}
        started = time.perf_counter()
        result, figures = attacker.reconstruct([self._payload], [shared], {}, initial_data=self.start(victim))
        if self._problem.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        done, requested = len(figures["Trial_0_Val"]), attacker.cfg.optim.max_iterations
        if done != requested:
            raise RuntimeError(
                f"The objective of victim {victim} was not finite after {done} of {requested} iterations."
            )
        return result["data"].cpu(), seconds, figures


def objective(victims: BreachingVictims, attacker: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Compute the objective and its gradient at each start, by the first iteration of an attack."""
    values, priors, gradients = [], [], []
    for victim in range(len(victims)):
        _, _, figures = victims.attack(attacker, victim)
        values.append(figures["Trial_0_Val"][0])
        priors.append(float(sum(variation(victims.start(victim)) for variation in attacker.regularizers)))
        gradients.append(attacker.gradient.cpu())
    tensors = {"objective": torch.tensor(values), "prior": torch.tensor(priors), "gradient": torch.stack(gradients)}
    return {}, tensors


def attack(victims: BreachingVictims, attacker: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Attack each victim, one after the other."""
    images, seconds, distances, traces, times = [], [], [], [], []
    for victim in range(len(victims)):
        image, spent, figures = victims.attack(attacker, victim)
        images.append(image)
        seconds.append(spent)
        distances.append(figures["opt_value"])
        if isinstance(attacker, Watched):
            traces.append(torch.stack(attacker.guesses).cpu())
            times.append(attacker.seconds)
    iterations = attacker.cfg.optim.max_iterations
    rate = len(victims) * victims.batch * iterations / sum(seconds)
    answer: dict[str, Any] = {"seconds": seconds, "image_iterations_per_second": rate, "distance": distances}
    tensors = {"images": torch.stack(images)}
    if isinstance(attacker, Watched):
        answer |= {"trace_iterations": list(range(0, iterations, attacker._every)), "trace_seconds": times}
        tensors["trace"] = torch.stack(traces)
    return answer, tensors


def solve(problem: BreachingProblem, tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the contents of answer.json and answer.safetensors."""
    torch.set_num_threads(problem.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    state = {name.removeprefix("weights."): value for name, value in tensors.items() if name.startswith("weights.")}
    model, loss = network(problem, state)
    victims = BreachingVictims(problem, tensors)
    if problem.mode == "objective":
        figures, answer = objective(victims, attacker(problem, model, loss, iterations=1))
    else:
        if problem.mode == "speed" and problem.warmup:
            victims.attack(attacker(problem, model, loss, problem.warmup), 0)
        figures, answer = attack(victims, attacker(problem, model, loss, problem.iterations))
    versions = {"breaching": version("breaching"), "torch": torch.__version__, "threads": torch.get_num_threads()}
    return {**versions, **figures}, {name: value.contiguous() for name, value in answer.items()}


def main(folder: Path) -> None:
    """Read the problem in a folder and write the answer beside it."""
    problem = BreachingProblem(**json.loads((folder / "problem.json").read_text()))
    figures, answer = solve(problem, load_file(folder / "problem.safetensors"))
    save_file(answer, folder / "answer.safetensors")
    (folder / "answer.json").write_text(json.dumps(figures, indent=1))


def _require(holds: bool, expected: str, **got: object) -> None:
    """Raise ValueError in the house's voice unless the condition holds; flfw's own is out of reach here."""
    if not holds:
        raise ValueError(f"Expected {expected}, got {', '.join(f'{k}={v}' for k, v in got.items())}.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(Path(sys.argv[1]))
