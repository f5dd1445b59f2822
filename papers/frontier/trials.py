"""Lines of the frontier, and the settings that it chooses from for each line, data set and scale."""

from dataclasses import dataclass

from flfw.experiment import Experiment
from flfw.papers.preset import ResultMetric, Scale
from flfw.privacy.claims import Adversary, Unit

_TEST = {
    "shared": ResultMetric("final.acc_global", "accuracy of the shared model, mean over the clients' test data", 1),
    "own": ResultMetric("final.acc_local", "accuracy of each client's own model, mean over the clients' test data", 1),
}
_VALIDATION = {
    "shared": ResultMetric("final.acc_global_validation", "the same on validation data", 1),
    "own": ResultMetric("final.acc_validation", "the same on validation data", 1),
}


@dataclass(frozen=True)
class FrontierLine:
    """Method, unit and adversary.

    Attributes:
        method: name of the method.
        unit: the unit that it clips, and so protects.
        against: the strongest adversary against whom it claims something.
        settings: settings that make it protect this unit.
        personal: whether its users get a model of their own, with a private head, or the shared one.
        turns: cohorts into which the clients are divided, each in its turn; 1: all take part in every round.
    """

    method: str
    unit: Unit
    against: Adversary
    settings: tuple[str, ...] = ()
    personal: bool = False
    turns: int = 1

    @property
    def test(self) -> ResultMetric:
        """Accuracy on test data, which is reported."""
        return _TEST["own" if self.personal else "shared"]

    @property
    def validation(self) -> ResultMetric:
        """Accuracy on validation data, which chooses."""
        return _VALIDATION["own" if self.personal else "shared"]

    @property
    def epsilon(self) -> ResultMetric:
        """The true epsilon, as the ledger has it."""
        entry = f"privacy.unit={self.unit},adversary={self.against},accounting=exact.epsilon"
        return ResultMetric(entry, f"epsilon of one {self.unit} against {self.against}", 1)


_EXAMPLES = ("batches=poisson", "grouping=flat", "momentum=0", "weight_decay=0")
_CLIENTS = ("grouping=flat", "momentum=0", "weight_decay=0")

LINES = (
    FrontierLine("fed_cdp", "example", "server", _EXAMPLES),
    FrontierLine("dp_fedavg", "example", "server", ("unit=example", *_EXAMPLES)),
    FrontierLine("fed_sdp", "client", "server", ("noised_by=client", *_CLIENTS)),
    FrontierLine("dp_fedavg", "client", "another client", ("unit=client", *_CLIENTS)),
    FrontierLine("dp_ftrl", "client", "another client", ("bands=4", *_CLIENTS), turns=4),
    FrontierLine("centaur", "client", "another client", ("unit=client", *_CLIENTS), personal=True),
    FrontierLine("ppsgd", "client", "another client", ("unit=client", *_CLIENTS), personal=True),
)

WITHOUT = {
    "centaur and ppsgd, unit=example": "their head learns from the same examples without noise",
    "dssgd": "sending few entries protects nobody",
}
"""Private by name, and without a point: nothing is claimed, for the reason that stands beside."""


CLIENTS: dict[Scale, int] = {"quick": 40, "full": 100}
COHORT = 10
TUNING_SEED, SEEDS = 100, (0, 1, 2)
EPSILONS: dict[Scale, tuple[float, ...]] = {"quick": (1.0, 8.0), "full": (1.0, 2.0, 4.0, 8.0)}


@dataclass(frozen=True)
class Data:
    """Data set of the frontier.

    Attributes:
        name: name of the data set here.
        examples: training examples of a client.
    """

    name: str
    examples: int


DATA = {
    "MNIST": Data("mnist", 500),
    "Fashion-MNIST": Data("fmnist", 500),
    "CIFAR-10": Data("cifar10", 400),
    "Adult": Data("adult", 300),
}

_STEPS = {"MNIST": (2.0, 4.0), "Fashion-MNIST": (1.0, 2.0), "CIFAR-10": (0.5, 1.0), "Adult": (2.0, 4.0)}
_LOCAL = {"MNIST": 0.1, "Fashion-MNIST": 0.1, "CIFAR-10": 0.01, "Adult": 0.1}
_FALLING, _MOMENTUM = ("bound=decay", "last_clip=0.5"), ("momentum=0.5",)


@dataclass(frozen=True)
class Trial:
    """Settings of one run.

    Attributes:
        net: the network.
        clip: bound of an example's gradient, or of a client's update.
        lr: learning rate of the local steps.
        rounds: rounds of each client, where they take turns.
        batch: examples in a local step; 0: all that a client has.
        more: further settings of the method.
    """

    net: str
    clip: float
    lr: float
    rounds: int
    batch: int = 0
    more: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Settings in a few words.

        >>> Trial("linear", 1.0, 2.0, 30).words
        'linear, C 1, lr 2, 30 rounds, batch all'
        """
        more = (one.replace("=", " ") for one in self.more)
        batch = self.batch or "all"
        return ", ".join(
            [self.net, f"C {self.clip:g}", f"lr {self.lr:g}", f"{self.rounds} rounds", f"batch {batch}", *more]
        )


def trials(line: FrontierLine, data: str, scale: Scale) -> tuple[Trial, ...]:
    """Return the settings to choose from, at least two.

    Args:
        line: the line.
        data: one of `DATA`.
        scale: the scale.
    """
    if line.unit == "example":
        return _of_examples(line, data, scale)
    return _of_heads(data, scale) if line.personal else _of_clients(data, scale)


def experiment(line: FrontierLine, data: str, trial: Trial, epsilon: float, seed: int, scale: Scale) -> Experiment:
    """Return the run of a trial.

    Args:
        line: the line.
        data: one of `DATA`.
        trial: the settings.
        epsilon: the epsilon that it must keep.
        seed: the seed; the halves of the test part do not depend on it.
        scale: the scale.
    """
    chosen = DATA[data]
    split = (f"sampled.train={chosen.examples}", "sampled.halves=alternate")
    replaced = {one.partition("=")[0] for one in trial.more}
    kept = (one for one in line.settings if one.partition("=")[0] not in replaced)
    return Experiment(
        method=line.method,
        dataset=chosen.name,
        net=trial.net,
        split="sampled",
        augment="none",
        clients=CLIENTS[scale],
        sample=COHORT if line.unit == "example" else CLIENTS[scale] // line.turns if line.turns > 1 else 0,
        rounds=trial.rounds * line.turns,
        local_epochs=1,
        batch_size=trial.batch or chosen.examples,
        lr=trial.lr,
        target_epsilon=epsilon,
        seed=seed,
        attack=("none",),
        set=(*split, *kept, f"clip={trial.clip:g}", *trial.more),
    )


def _of_examples(line: FrontierLine, data: str, scale: Scale) -> tuple[Trial, ...]:
    """Return settings for noisy steps; Fed-CDP's bound can also fall, DP-FedAvg can have momentum."""
    slow, fast = _STEPS[data]
    variation = _FALLING if line.method == "fed_cdp" else _MOMENTUM
    if scale == "quick":
        return Trial("linear", 1, slow, 15), Trial("linear", 1, fast, 15, more=variation)
    net = _deep(data)
    return (
        *(Trial("linear", 1, slow, rounds) for rounds in (30, 100)),
        Trial("linear", 1, fast, 100, more=variation),
        *(Trial(net, clip, lr, 100) for clip, lr in ((1, 0.5), (0.3, 1))),
        Trial(net, 1, 1, 100, more=variation),
    )


def _of_clients(data: str, scale: Scale) -> tuple[Trial, ...]:
    """Return settings for clipped updates of the whole model."""
    lr = _LOCAL[data]
    if scale == "quick":
        return tuple(Trial("linear", clip, lr, 2, 100) for clip in (1, 0.2))
    return tuple(Trial("linear", clip, lr, rounds, 50) for clip in (0.1, 0.3, 1) for rounds in (5, 20))


def _of_heads(data: str, scale: Scale) -> tuple[Trial, ...]:
    """Return settings for clipped updates of an extractor below a head that stays."""
    head, lr = (f"head_lr={_LOCAL[data]:g}",), _LOCAL[data]
    if scale == "quick":
        return tuple(Trial("mlp", clip, lr, 2, 100, head) for clip in (0.5, 0.1))
    return tuple(Trial(_deep(data), clip, lr, rounds, 50, head) for clip in (0.1, 0.5) for rounds in (5, 20))


def _deep(data: str) -> str:
    return "mlp" if data == "Adult" else "cnn3x3"
