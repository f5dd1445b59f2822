"""Settings of the training, the data and the privacy; each group has at most twelve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flfw.errors import require
from flfw.experiment.fields import MOST, integer, require_at_least, require_at_most, require_finite


@dataclass(frozen=True)
class MethodSettings:
    """Settings of the method."""

    method: str = "hyperfl"
    """Federated method: a file of strategies/, or package.module:Class. See --list."""
    variant: Literal["ours", "authors", "paper"] = "ours"
    """The method as here, or where these differ as in its authors' code or as its paper prints it; see its card."""


@dataclass(frozen=True)
class RoundSettings:
    """Settings of the rounds: who takes part, how many there are, how updates become a model."""

    clients: int = 10
    """Clients in all."""
    sample: int = 0
    """Clients drawn in each round; 0: all of them."""
    sampling: Literal["fixed", "poisson"] = "fixed"
    """How they are drawn: exactly so many, or each by a coin of its own, so that their number varies."""
    rounds: int = 10
    """Rounds of training."""
    patience: int = 0
    """End when no client's validation accuracy has risen for so many rounds; 0: no such end. In rounds, >= 0."""
    robust: Literal["none", "median", "trimmed_mean", "krum", "clipping"] = "none"
    """In place of the mean of the clients' updates one that few lies cannot move far; all clients count alike."""
    byzantine_clients: int = 0
    """The most clients of a round that lie: trimmed_mean and krum work by it; each --expert robust needs
    enough updates. >= 0."""
    ema: float = 0.0
    """Evaluate a moving average of the models in the end, with at most this weight of the past; 0: the last model. 0
    <= ema < 1."""
    final_eval_clients: str = "1000"
    """Clients of the final evaluation: all, none, or at most so many, drawn by the seed from more."""
    on_client_failure: Literal["fail", "drop"] = "fail"
    """What becomes of a client that fails: it ends the run, or it is dropped from the round. Either way it is named."""
    min_clients: int = 1
    """A round with fewer usable updates ends the run. From 1 to the clients of a round."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, ("clients", "rounds"))
        require_at_most(self, MOST, ("clients", "rounds"))
        require_at_least(self, 0, ("patience", "byzantine_clients"))
        require(0 <= self.sample <= self.clients, f"0 <= sample <= clients={self.clients}", sample=self.sample)
        lied_to = "--expert robust with --expert byzantine_clients"
        require(self.robust != "none" or not self.byzantine_clients, lied_to, robust=self.robust)
        trims = self.robust != "trimmed_mean" or self.byzantine_clients >= 1
        untrimmed = "byzantine-clients >= 1 with --expert robust=trimmed_mean, which without is a mean"
        require(trims, untrimmed, byzantine_clients=self.byzantine_clients)
        require(0 <= self.ema < 1, "0 <= ema < 1", ema=self.ema)
        fits = 1 <= self.min_clients <= self.per_round
        require(fits, f"1 <= min-clients <= {self.per_round}, the clients of a round", min_clients=self.min_clients)
        _ = self.finally_asked

    @property
    def per_round(self) -> int:
        """Clients in each round."""
        return self.sample or self.clients

    @property
    def poisson(self) -> bool:
        """Whether each client is drawn by a coin of its own."""
        return self.sampling == "poisson" and self.per_round < self.clients

    @property
    def finally_asked(self) -> int:
        """Number of clients that are asked for the final evaluation."""
        given = self.final_eval_clients
        if given in ("all", "none"):
            return self.clients if given == "all" else 0
        number = int(given) if given.isdecimal() and len(given) <= len(str(MOST)) else 0
        expected = f"final-eval-clients=all, none or a number from 1 to {MOST:,}"
        require(1 <= number <= MOST, expected, final_eval_clients=given)
        return min(number, self.clients)


@dataclass(frozen=True)
class LocalSettings:
    """Settings of a client's local training."""

    local_epochs: int = 5
    """Passes over a client's own data in each round."""
    batch_size: int = 50
    """Examples in a local step."""
    lr: float = 0.01
    """Learning rate of the local steps."""
    example_order: Literal["shuffled", "fixed"] = "shuffled"
    """Order of a client's examples in a pass: new in each, or as stored in all."""
    batched_clients: str = "1"
    """Clients whose local steps one process computes together, a number; auto: as many as usually gain by it, 1 where
    the method, the network or the engine has no such steps. It changes the rounding of a run's numbers, no more."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, ("local_epochs", "batch_size"))
        require_at_most(self, MOST, ("local_epochs", "batch_size"))
        require_finite(self, ("lr",))
        _ = self.together

    @property
    def together(self) -> int:
        """Number of clients whose local steps are computed together; 0: ``auto``, which a run's start replaces."""
        given = self.batched_clients
        if given == "auto":
            return 0
        number = int(given) if given.isdecimal() and len(given) <= len(str(MOST)) else 0
        require(1 <= number <= MOST, f"batched-clients=auto or a number from 1 to {MOST:,}", batched_clients=given)
        return number


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of the network, its first weights and the part of it that is trained."""

    net: str = "auto"
    """Network; auto: the one the method names, else the one the papers use on this data set."""
    init: Literal["torch", "glorot"] = "torch"
    """First weights of the network: its own, or Glorot's uniform ones with biases of 0."""
    norm: Literal["own", "group"] = "own"
    """Normalisation of the network: its own, or GroupNorm in place of each BatchNorm, as per-example gradients need."""
    trainable: Literal["auto", "full", "adapter", "lora", "linear_probe"] = "auto"
    """Trained part of a pretrained network: all of it, adapters or low-rank products (LoRA) and the classifier, or the
    classifier alone; auto: the part that the method names, for most all of it. The rest is frozen, and no message
    holds it."""
    weights: str = ""
    """Weights of a pretrained network: a file, a folder with it, or random; empty: as $FLFW_WEIGHTS says, else from the
    caches of torchvision and the Hugging Face Hub. Nothing is downloaded. Each site has its own copy."""
    weights_sha256: str = ""
    """SHA-256 that these weights must have at every party, of their names and numbers; empty: that of this machine's
    file."""
    malicious_server: str = ""
    """Attack whose malicious server changes the network that all clients build and train, or the numbers that some are
    sent: a file of attacks/, or package.module:Class. Empty: the server follows the protocol. Verdicts of such a run
    say nothing about that."""


@dataclass(frozen=True)
class DefenceSettings:
    """Settings of the client-side defence."""

    defence: str = "none"
    """Client-side defence: a file of clients/defences/, or package.module:Class. Several names form a pipeline and act
    in this order: soteria prune, or as one word soteria+prune."""
    defended: str = "all"
    """Which clients use the defence: all, or partition numbers such as 3,5."""
    defence_randomness: Literal["seed", "secure", "auto"] = "seed"
    """Where the defence's random numbers come from. seed: the run's seed, so that a run repeats; whoever has it, as the
    server does, can repeat them, too, and take added noise off. secure: each client's own operating system, so that
    nobody can. auto, the default with --federation: secure there, else seed."""

    def __post_init__(self) -> None:
        _ = self.defences

    @property
    def defences(self) -> tuple[str, ...]:
        """Names of the client-side defences in the order in which they act; empty: none."""
        if self.defence == "none":
            return ()
        names = tuple(self.defence.split("+"))
        fits = len(names) == 1 or all(name not in ("", "none") for name in names)
        require(fits, "a name other than none on each side of +", defence=self.defence)
        short = [name.rpartition(":")[2] for name in names]  # in --set
        require(len(set(short)) == len(short), "each defence of a pipeline once", defence=self.defence)
        return names

    def partitions(self, clients: int) -> range | frozenset[int]:
        """Return the partitions, of so many clients, that use the defence."""
        everyone, all_ = range(clients), self.defended == "all"
        chosen = () if all_ else tuple(integer(word, "defended") for word in self.defended.split(","))
        require(all(p in everyone for p in chosen), f"0 <= defended < {clients}", defended=self.defended)
        if self.defence == "none":
            return frozenset()
        return everyone if all_ else frozenset(chosen)


@dataclass(frozen=True)
class TrainingSettings(DefenceSettings, NetworkSettings, LocalSettings, RoundSettings, MethodSettings):
    """Settings of the method, the rounds, the clients and their local training: what the help has in one section."""

    seed: int = 0
    """Everything random is derived from it."""

    def __post_init__(self) -> None:
        for group in (RoundSettings, LocalSettings, DefenceSettings):
            group.__post_init__(self)
        require_at_least(self, 0, ("seed",))
        require_at_most(self, 2**63 - 1, ("seed",))  # Flower's own limit
        _ = self.defended_partitions

    @property
    def defended_partitions(self) -> range | frozenset[int]:
        """Partitions whose clients use the defence."""
        return self.partitions(self.clients)


@dataclass(frozen=True)
class DataSettings:
    """Settings of the data set and its partition into clients."""

    dataset: str = "digits"
    """Data set, see --list; folder:PATH for your own images, a folder a class; text:FILE for your own text;
    csv:FILE@TARGET or parquet:FILE@TARGET for your own table; hf:NAME for the Hugging Face Hub;
    site:CxHxW:CLASSES for what only the sites of a federation have;
    synthetic:ALPHA,BETA for what is generated for each client."""
    split: str = "auto"
    """How the data are cut into clients; auto: the data set's usual way. See --list and --show-split."""
    test: Literal["own", "shared"] = "own"
    """Test examples of a client: its own, or for all clients the same, at most 1000, where there are too few to
    divide."""
    image_size: int = 0
    """Height and width in pixels that images are resized to; 0: what the network takes, else as published."""
    resize: str = ""
    """Height and width that your own images of any size are brought to, N or HxW (folder:PATH); empty: they keep
    theirs. An --image-size that is given as well follows."""
    resize_mode: Literal["auto", "crop", "letterbox", "stretch"] = "auto"
    """How an image of another shape gets that size: scaled and cut in the middle, scaled with black bars, or stretched;
    auto: crop with --expert resize, stretch for the size that site:CxHxW names."""
    colour: Literal["auto", "grey", "rgb"] = "auto"
    """Colour of your own images (folder:PATH): all made grey, all made RGB; auto: grey if all of them are."""
    skip_damaged: bool = False
    """Go on without those of your own images that cannot be read; the notes say how many, of which classes."""
    augment: Literal["auto", "none", "flip", "crop_flip"] = "auto"
    """How training images are varied; auto: as the papers do on this data set."""
    normalise: Literal["own", "imagenet", "half", "none", "backbone"] = "own"
    """Mean and deviation that inputs are normalised with: the data set's own, ImageNet's, 0.5, none: 0 and 1, or
    backbone: those for which a pretrained network's weights were made."""
    data_root: Path | None = None
    """Folder with the data sets' own files; default: $FLFW_DATA, else the user cache."""

    def __post_init__(self) -> None:
        require_at_least(self, 0, ("image_size",))
        require(self.test in ("own", "shared"), "test=own or shared", test=self.test)
        require_at_most(self, 4096, ("image_size",))
        kinds = {"resize_mode": ("auto", "crop", "letterbox", "stretch"), "colour": ("auto", "grey", "rgb")}
        for name, known in kinds.items():
            given = getattr(self, name)
            require(given in known, f"{name.replace('_', '-')}={', '.join(known[:-1])} or {known[-1]}", **{name: given})
        _ = self.resized

    @property
    def resized(self) -> tuple[int, int] | None:
        """Height and width that a user's own images are brought to; None: they keep theirs."""
        if not self.resize:
            return None
        words = self.resize.split("x")
        numbers = [int(word) for word in words if word.isdecimal() and word.isascii() and len(word) <= 4]
        fits = len(numbers) == len(words) <= 2 and all(1 <= number <= 4096 for number in numbers)
        require(fits, "resize=N or HxW, each from 1 to 4096", resize=self.resize)
        return numbers[0], numbers[-1]


@dataclass(frozen=True)
class PrivacySettings:
    """Settings of the privacy that is required, claimed and measured."""

    target_epsilon: float = 0.0
    """Find the least noise of the method that keeps this epsilon; 0: the noise is as set."""
    epsilon_budget: float = 0.0
    """Stop before the round that would exceed this epsilon; 0: no such end. >= 0."""
    delta: float = 1e-5
    """Probability with which an epsilon may fail; to be below one over the number of whoever is protected. 0 < delta <
    1."""
    accountant: Literal["prv", "rdp", "moments"] = "prv"
    """How epsilons are computed; all are upper bounds, prv the tightest, moments as in older papers."""
    accounting: Literal["exact", "paper"] = "exact"
    """paper: also as the method's paper counts, and a target and a budget by that; the true figure stands beside it."""
    patient_examples: int = 0
    """The most examples that one patient has at a client, for the privacy of patients; 0: counted where the data name
    patients (folder:PATH@patient), and else not known. >= 0."""
    patient_clients: int = 1
    """The most clients at which one patient has examples of its own; copies that a split makes are counted beside. >=
    1."""
    colluding_clients: int = 0
    """The most clients that add no noise, or give theirs away to who sees sums: the claim against aggregate counts
    without them. >= 0."""
    canaries: int = 0
    """Examples that are left out by a coin, to measure from one run how much is certainly lost; 0: none. >= 0."""
    metrics: Literal["all", "private", "none", "auto"] = "all"
    """Numbers that clients report beside tensors. private: loss, accuracies and number of examples, with noise that the
    claims count. none: no loss, accuracy, count or time leaves a client; all count alike in the mean, and accuracy is
    measured by the server, where it has test data. auto, the default with --federation: none for a method with a claim,
    else all."""
    metrics_noise_multiplier: float = 10.0
    """Noise of metrics=private: its standard deviation over what one example, or client, can change in an
    answer's numbers. From 0.001 to 1e6."""

    def __post_init__(self) -> None:
        require(0 < self.delta < 1, "0 < delta < 1", delta=self.delta)
        require_finite(self, ("target_epsilon", "epsilon_budget"), zero=True)
        require_at_least(self, 0, ("patient_examples", "colluding_clients", "canaries"))
        require_at_least(self, 1, ("patient_clients",))
        known = self.patient_examples >= 1 or self.patient_clients == 1
        require(known, "patient-examples >= 1 with patient-clients", patient_clients=self.patient_clients)
        known = ("all", "private", "none", "auto")
        require(self.metrics in known, "metrics=all, private, none or auto", metrics=self.metrics)
        fits = 1e-3 <= self.metrics_noise_multiplier <= 1e6  # with less no epsilon is computed, and more counts as 1e6
        require(
            fits, "0.001 <= metrics-noise-multiplier <= 1e6", metrics_noise_multiplier=self.metrics_noise_multiplier
        )
