"""Settings of the training, the data and the privacy; each group has at most twelve."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from flfw.bounds import NonNegativeFinite, NonNegativeInt, OpenShare, PositiveFinite, ShareBelowOne, ValueRange
from flfw.errors import require
from flfw.experiment.fields import MOST, Count, FlagSettings, integer, word_and_number

RobustName: TypeAlias = Literal["none", "median", "trimmed_mean", "krum", "clipping"]
"""Rules that combine the updates of a round; none: their mean."""

_ROBUST: tuple[RobustName, ...] = get_args(RobustName)


@dataclass(frozen=True)
class MethodSettings(FlagSettings):
    """Settings of the method."""

    method: str = "hyperfl"
    """Federated method: a file of strategies/, or package.module:Class. See --list."""
    variant: Literal["ours", "authors", "paper"] = "ours"
    """The method as here, or where these differ as in its authors' code or as its paper prints it; see its card."""


@dataclass(frozen=True)
class RoundSettings(FlagSettings):
    """Settings of the rounds: who takes part, how many there are, how updates become a model."""

    clients: Count = 10
    """Clients in all."""
    sample: int = 0
    """Clients drawn in each round; 0: all of them."""
    sampling: Literal["fixed", "poisson"] = "fixed"
    """How they are drawn: exactly so many, or each by a coin of its own, so that their number varies."""
    rounds: Count = 10
    """Rounds of training."""
    patience: NonNegativeInt = 0
    """End when no client's validation accuracy has risen for so many rounds; 0: no such end. In rounds, >= 0."""
    robust: str = "none"
    """In place of the mean of the clients' updates one that few lies cannot move far: none, median, trimmed_mean:N,
    krum:N or clipping, of which each may name the most clients N of a round that lie; all clients count alike."""
    ema: ShareBelowOne = 0.0
    """Evaluate a moving average of the models in the end, with at most this weight of the past; 0: the last model. 0
    <= ema < 1."""
    final_eval_clients: str = "1000"
    """Clients of the final evaluation: all, none, or at most so many, drawn by the seed from more."""
    on_client_failure: str = "fail"
    """What becomes of a client that fails, which is named: fail, it ends the run; drop, it is dropped from the round.
    With :N, as in drop:8, a round with fewer than N usable updates ends the run; N from 1 to the clients of a round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.sample <= self.clients, f"0 <= sample <= clients={self.clients}", sample=self.sample)
        require(self.robust_rule != "none" or self.robust == "none", "a robust mean before :N", robust=self.robust)
        trims = self.robust_rule != "trimmed_mean" or self.byzantine_clients >= 1
        require(trims, "robust=trimmed_mean:N with N >= 1, which without is a mean", robust=self.robust)
        expected = f"on-client-failure=fail or drop, with :N from 1 to {self.per_round}, the clients of a round"
        require(1 <= self.min_clients <= self.per_round, expected, on_client_failure=self.on_client_failure)
        _ = self.finally_asked

    @property
    def robust_rule(self) -> RobustName:
        """Name of the robust mean; none: the mean."""
        return word_and_number(self.robust, "robust", _ROBUST, 0)[0]

    @property
    def byzantine_clients(self) -> int:
        """The most clients of a round that lie."""
        return word_and_number(self.robust, "robust", _ROBUST, 0)[1]

    @property
    def drops_failures(self) -> bool:
        """Whether a client that fails is dropped from the round, and does not end the run."""
        return word_and_number(self.on_client_failure, "on-client-failure", ("fail", "drop"), 1)[0] == "drop"

    @property
    def min_clients(self) -> int:
        """Least number of usable updates in a round; fewer end the run."""
        return word_and_number(self.on_client_failure, "on-client-failure", ("fail", "drop"), 1)[1]

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
class LocalSettings(FlagSettings):
    """Settings of a client's local training."""

    local_epochs: Count = 5
    """Passes over a client's own data in each round."""
    batch_size: Count = 50
    """Examples in a local step."""
    lr: PositiveFinite = 0.01
    """Learning rate of the local steps."""
    example_order: Literal["shuffled", "fixed"] = "shuffled"
    """Order of a client's examples in a pass: new in each, or as stored in all."""
    batched_clients: str = "1"
    """How many clients one process trains at once; auto chooses, 1 where the method, the network or the engine has no
    such steps. It changes the rounding of a run's numbers, no more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.clients_per_batch

    @property
    def clients_per_batch(self) -> int:
        """Number of clients whose local steps are computed together; 0: ``auto``, which a run's start replaces."""
        given = self.batched_clients
        if given == "auto":
            return 0
        number = int(given) if given.isdecimal() and len(given) <= len(str(MOST)) else 0
        require(1 <= number <= MOST, f"batched-clients=auto or a number from 1 to {MOST:,}", batched_clients=given)
        return number


@dataclass(frozen=True)
class NetworkSettings(FlagSettings):
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
class DefenceSettings(FlagSettings):
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
        super().__post_init__()
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

    seed: Annotated[int, ValueRange(ge=0, le=2**63 - 1)] = 0  # Flower's own limit
    """Everything random is derived from it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.defended_partitions

    @property
    def defended_partitions(self) -> range | frozenset[int]:
        """Partitions whose clients use the defence."""
        return self.partitions(self.clients)


@dataclass(frozen=True)
class OwnImages:
    """How a user's own images are read.

    Attributes:
        size: height and width to which they are brought; None: they keep theirs.
        mode: ``crop``, ``letterbox`` or ``stretch``, for images of another shape; ``auto``: crop, but stretch at sites.
        colour: ``grey`` or ``rgb``; ``auto``: grey if all of them are.
        skip_damaged: whether those that cannot be read are left out.
        bits: bits that grey levels in files of 16 bits use; 0: as many as all files together need.
    """

    size: tuple[int, int] | None
    mode: Literal["auto", "crop", "letterbox", "stretch"]
    colour: Literal["auto", "grey", "rgb"]
    skip_damaged: bool
    bits: int = 0

    @property
    def others(self) -> list[str]:
        """The words beside those on size and colour."""
        return ["skip_damaged"] * self.skip_damaged + [f"{self.bits}bits"] * bool(self.bits)


@dataclass(frozen=True)
class DataSettings(FlagSettings):
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
    image_size: Annotated[int, ValueRange(ge=0, le=4096)] = 0
    """Height and width in pixels that images are resized to; 0: what the network takes, else as published."""
    own_images: str = ""
    """How your own images are read (folder:PATH, site:CxHxW:CLASSES), words with commas between: a size N or HxW, to
    which an --image-size may follow; crop, letterbox or stretch, for images of another shape; grey or rgb;
    skip_damaged, to go on without those that cannot be read; and 8bits to 16bits, which grey levels of 16 bits use.
    Empty: size and colour as they are, and as many bits as all files need, of which sites must use 16."""
    augment: Literal["auto", "none", "flip", "crop_flip"] = "auto"
    """How training images are varied; auto: as the papers do on this data set."""
    normalise: Literal["own", "imagenet", "half", "none", "backbone"] = "own"
    """Mean and deviation that inputs are normalised with: the data set's own, ImageNet's, 0.5, none: 0 and 1, or
    backbone: those for which a pretrained network's weights were made."""
    data_root: Path | None = None
    """Folder with the data sets' own files; default: $FLFW_DATA, else the user cache."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.image_words

    @property
    def image_words(self) -> OwnImages:
        """The words of ``own_images``.

        Raises:
            InputError: a word is none of those known, or two say the same.
        """
        size: tuple[int, int] | None = None
        mode: Literal["auto", "crop", "letterbox", "stretch"] = "auto"
        colour: Literal["auto", "grey", "rgb"] = "auto"
        skips, bits = False, 0
        for word in filter(None, self.own_images.split(",")):
            if word in ("crop", "letterbox", "stretch") and mode == "auto":
                mode = word
            elif word in ("grey", "rgb") and colour == "auto":
                colour = word
            elif word == "skip_damaged" and not skips:
                skips = True
            elif word.endswith("bits") and word[:-4] in map(str, range(8, 17)) and not bits:
                bits = int(word[:-4])
            else:
                sides = [
                    int(side) for side in word.split("x") if side.isdecimal() and side.isascii() and len(side) <= 4
                ]
                fits = len(sides) == word.count("x") + 1 <= 2 and all(1 <= side <= 4096 for side in sides)
                known = "a size N or HxW, each from 1 to 4096, crop, letterbox or stretch, grey or rgb, skip_damaged"
                known = f"own-images of {known}, 8bits to 16bits, each once"
                require(fits and size is None, known, own_images=self.own_images)
                size = sides[0], sides[-1]
        return OwnImages(size, mode, colour, skips, bits)


@dataclass(frozen=True)
class PrivacySettings(FlagSettings):
    """Settings of the privacy that is required, claimed and measured."""

    target_epsilon: NonNegativeFinite = 0.0
    """Find the least noise that keeps this epsilon; without --method, choose the method (DP-FedAvg, an example is
    protected) and how it trains, too. What is given stays; no example and no result is read. 0: the noise is as set."""
    epsilon_budget: NonNegativeFinite = 0.0
    """Stop before the round that would exceed this epsilon; 0: no such end. >= 0."""
    delta: OpenShare = 1e-5
    """Probability with which an epsilon may fail; should be smaller than 1 / (number of people protected). 0 < delta <
    1."""
    accountant: Literal["prv", "rdp", "moments", "paper"] = "prv"
    """How epsilons are computed; all are upper bounds, prv the tightest, moments as in older papers. paper: by prv, and
    also as the method's paper counts, a target and a budget by that; the true figure stands beside it."""
    patient_examples: str = "0"
    """The most examples that one patient has at a client, for the privacy of patients; 0: counted where the data name
    patients (folder:PATH@patient), and else not known. 3x2: of 3 examples at each of at most 2 clients; copies that a
    split makes are counted beside."""
    colluding_clients: NonNegativeInt = 0
    """The most clients that work together with who sees sums: they add no noise or give theirs away, and the claim
    against aggregate counts without them; an audit's attacker (vantages aggregate and peer, which is one of them) knows
    their messages, of one at least. >= 0."""
    canaries: NonNegativeInt = 0
    """Examples that are left out by a coin, to measure from one run how much is certainly lost; 0: none. >= 0."""
    metrics: Literal["all", "private", "none", "auto"] = "all"
    """Numbers that clients report beside tensors. private: loss, accuracies and number of examples, with noise that the
    claims count. none: no loss, accuracy, count or time leaves a client; all count alike in the mean, and accuracy is
    measured by the server, where it has test data. auto, the default of the command line: none for a method with a
    claim, with --federation or noise_source=secure; else all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.patient

    @property
    def patient(self) -> tuple[int, int]:
        """The most examples of a patient at a client, 0 if not known, and the most clients that have some of them."""
        words = self.patient_examples.split("x")
        numbers = [int(word) for word in words if word.isdecimal() and len(word) <= len(str(MOST))]
        fits = len(numbers) == len(words) <= 2 and (numbers == [0] or min(numbers) >= 1) and max(numbers) <= MOST
        require(fits, "patient-examples=0, N or NxCLIENTS, each >= 1", patient_examples=self.patient_examples)
        return numbers[0], numbers[1] if len(numbers) == 2 else 1

    @property
    def tightest(self) -> Literal["prv", "rdp", "moments"]:
        """The accountant of the true figures."""
        return "prv" if self.accountant == "paper" else self.accountant
