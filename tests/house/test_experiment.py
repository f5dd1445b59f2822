"""What to run: the record, its way through Flower's run_config, its checks, and the command line that fills it."""

import dataclasses
import os
import subprocess
import sys
import tomllib
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

import sim
from flfw.command.arguments import Command
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.experiment.training import OwnImages
from flfw.files.earlier_names import settings_of_today
from flfw.plans.run_plan import without_auto
from flfw.plugins import build_settings
from tests.support.paths import ROOT

UNUSUAL = Experiment(
    method="my lab.shop:Method",
    clients=7,
    sample=3,
    lr=1.0,
    defence="prune",
    defended="3,5",
    attack=("ig", "a b.c:D"),
    audit_rounds="0,1,last",
    engine="inproc",
    gpus_per_client=0.5,
    data_root=Path("/data with spaces"),
    set=("clip=5", 'ig.note=it\'s "two words"', "empty="),
)


# --- through Flower's run_config ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "experiment", [Experiment(), UNUSUAL, Experiment(attack=()), Experiment(attack=("none",)), Experiment(set=("",))]
)
def test_an_experiment_survives_the_run_config(experiment) -> None:
    assert Experiment.from_run_config(experiment.to_run_config()) == experiment


def test_the_run_config_is_flat_scalars_under_dashed_names() -> None:
    config = UNUSUAL.to_run_config()
    assert {type(value) for value in config.values()} <= {bool, int, float, str}
    assert set(config) == {field.name.replace("_", "-") for field in dataclasses.fields(Experiment)}
    assert config["attack"] == "ig 'a b.c:D'"
    assert config["data-root"] == "/data with spaces"
    assert config["out"] == ""
    assert config["audit-rounds"] == "0,1,last"


def test_whole_numbers_are_read_back_as_floats_where_floats_are_meant() -> None:
    config = {**Experiment().to_run_config(), "lr": 1, "cpus-per-client": 2, "gpus-per-client": 0}
    read = Experiment.from_run_config(config)
    values = (read.lr, read.cpus_per_client, read.gpus_per_client, read.clients)
    assert values == (1, 2, 0, 10) and [type(value) for value in values] == [float, float, float, int]


def test_another_apps_keys_are_left_alone() -> None:
    assert Experiment.from_run_config({**UNUSUAL.to_run_config(), "fraction-fit": 0.1}) == UNUSUAL


def test_earlier_names_are_refused_with_those_of_today() -> None:
    config = Experiment().to_run_config()
    earlier = {name: value for name, value in config.items() if name != "malicious-server"} | {"tampered-by": ""}
    with pytest.raises(InputError, match=r"Expected malicious-server in .*, got its earlier name tampered-by; rename"):
        Experiment.from_run_config(earlier)
    with pytest.raises(InputError, match="got --tampered-by; it is called --malicious-server now"):
        dataclasses.replace(Experiment(), tampered_by="imprint")  # type: ignore[call-arg]
    with pytest.raises(InputError, match="Expected --trainable linear_probe, got its earlier name fixed; rename it"):
        Experiment.from_run_config({**config, "trainable": "fixed"})
    with pytest.raises(InputError, match=r"got --min-clients, which is gone; write --expert on_client_failure=drop:8"):
        dataclasses.replace(Experiment(), min_clients=2)  # type: ignore[call-arg]


def test_what_earlier_settings_said_is_said_by_those_of_today() -> None:
    """By hand: what stood in several settings stands in one, defaults are dropped, and what cannot be said stays."""
    requested = {
        "robust": "krum",
        "byzantine-clients": 2,
        "on-client-failure": "drop",
        "min-clients": 8,
        "compression": "gzip",
    }
    requested |= {"resize": "8x9", "resize-mode": "crop", "colour": "auto", "skip-damaged": True, "patient-examples": 3}
    requested |= {
        "compression": "gzip",
        "patient-clients": 2,
        "attack-precision": "bf16",
        "attack-compile": True,
        "colluding-clients": 0,
    }
    requested |= {"colluding-attackers": 2, "accountant": "prv", "accounting": "paper"}
    assert settings_of_today(requested) == {
        "robust": "krum:2", "on-client-failure": "drop:8", "own-images": "8x9,crop,skip_damaged",
        "patient-examples": "3x2", "attack-precision": "bf16_compiled", "colluding-clients": 2, "accountant": "paper",
    }  # fmt: skip
    stays = {"accountant": "rdp", "accounting": "paper", "metrics-noise-multiplier": 3.0, "server-device": "cuda"}
    assert settings_of_today(stays) == stays


def test_own_images_are_read_in_any_order() -> None:
    words = Experiment(own_images="skip_damaged,12bits,grey,48x64,letterbox").image_words
    assert words == OwnImages((48, 64), "letterbox", "grey", True, 12) and words.others == ["skip_damaged", "12bits"]
    assert Experiment(own_images="64").image_words.size == (64, 64) and Experiment().image_words.size is None
    with pytest.raises(InputError, match="each once, got own_images=crop,stretch"):
        Experiment(own_images="crop,stretch")


def test_a_setting_behind_expert_fills_its_field() -> None:
    line = "--expert attack_timeout=5 keep_state=true --rounds 3 --expert=own_images=12x10"
    expected = Experiment(attack_timeout=5, keep_state=True, rounds=3, own_images="12x10")
    assert sim.parse(line.split()).experiment == expected


def test_pyproject_declares_every_field_with_its_default() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert declared == Experiment().to_run_config()
    assert Experiment.from_run_config(declared) == Experiment()


# --- checks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clients": 0}, "Expected 1 <= clients <= 1,000,000, got clients=0."),
        ({"rounds": 0}, "Expected 1 <= rounds <= 1,000,000, got rounds=0."),
        ({"local_epochs": -2}, "Expected 1 <= local-epochs <= 1,000,000, got local_epochs=-2."),
        ({"batch_size": 0}, "Expected 1 <= batch-size <= 1,000,000, got batch_size=0."),
        ({"victim_batch": 0}, "Expected 1 <= victim-batch <= 1,000,000, got victim_batch=0."),
        ({"images": 0}, "Expected 1 <= images <= 1,000,000, got images=0."),
        ({"sample": 11}, "Expected 0 <= sample <= clients=10, got sample=11."),
        ({"sample": -1}, "Expected 0 <= sample <= clients=10, got sample=-1."),
        ({"lr": 0.0}, "Expected 0 < lr < inf, got lr=0.0."),
        ({"lr": float("nan")}, "Expected 0 < lr < inf, got lr=nan."),
        ({"seed": -1}, "Expected 0 <= seed <= 9,223,372,036,854,775,807, got seed=-1."),
        ({"victim_steps": 0}, "Expected 1 <= victim-steps <= 1,000,000, got victim_steps=0."),
        ({"cpus_per_client": 0}, "Expected 0 < cpus-per-client < inf, got cpus_per_client=0."),
        ({"gpus_per_client": -0.5}, "Expected 0 <= gpus-per-client < inf, got gpus_per_client=-0.5."),
        ({"audit_rounds": "0,first"}, "Expected whole numbers for audit-rounds, got 'first'."),
        ({"audit_rounds": "-1"}, "Expected whole numbers for audit-rounds, got '-1'."),
        ({"audit_rounds": "1,,2"}, "Expected whole numbers for audit-rounds, got ''."),
        ({"audit_rounds": "²"}, "Expected whole numbers for audit-rounds, got '²'."),
        ({"audit_rounds": "0,11"}, "Expected 0 <= audit-rounds <= rounds=10, got audit_rounds=0,11."),
        ({"defence": "prune", "defended": "3,ten"}, "Expected whole numbers for defended, got 'ten'."),
        ({"defence": "prune", "defended": "3,10"}, "Expected 0 <= defended < 10, got defended=3,10."),
    ],
)
def test_a_wrong_value_is_refused_in_one_voice(fields, message) -> None:
    with pytest.raises(InputError) as caught:
        Experiment(**fields)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "fields",
    [
        {"clients": 1},
        {"sample": 10},
        {"lr": 1e-9},
        {"cpus_per_client": 0.01},
        {"gpus_per_client": 0},
        {"audit_rounds": "10"},
        {"audit_rounds": " 3"},
        {"defence": "prune", "defended": "0,9"},
    ],
)
def test_a_value_at_the_edge_is_accepted(fields) -> None:
    made = Experiment(**fields)
    assert [getattr(made, name) for name in fields] == list(fields.values())


@pytest.mark.parametrize(
    ("rounds", "text", "audited"),
    [(10, "0,1,last", (0, 1, 10)), (1, "0,1,last", (0, 1)), (5, "4,0,4", (0, 4)), (3, "last", (3,))],
)
def test_audited_rounds_ascend_without_repeats(rounds, text, audited) -> None:
    assert Experiment(rounds=rounds, audit_rounds=text).audited == audited


@pytest.mark.parametrize("attack", [(), ("none",)])
def test_without_an_attack_no_round_is_audited(attack) -> None:
    quiet = Experiment(attack=attack, audit_rounds="0,99")  # rounds that nobody reads are not checked either
    assert (quiet.attacks, quiet.audited) == ((), ())


@pytest.mark.parametrize(
    ("fields", "defended"),
    [
        ({"defence": "none"}, set()),
        ({"defence": "none", "defended": "1"}, set()),
        ({"defence": "x"}, {0, 1, 2, 3}),
        ({"defence": "x", "defended": "3,1,3"}, {1, 3}),
    ],
)
def test_who_uses_the_defence(fields, defended) -> None:
    assert set(Experiment(clients=4, **fields).defended_partitions) == defended


@pytest.mark.parametrize(("sample", "per_round"), [(0, 10), (4, 4)])
def test_the_clients_of_a_round_are_the_sample_or_everybody(sample, per_round) -> None:
    assert Experiment(sample=sample).per_round == per_round


@pytest.mark.parametrize(("cohort", "together"), [("1", 1), ("8", 8), ("auto", 0)])
def test_a_cohort_is_a_number_or_is_chosen_at_the_start(cohort, together) -> None:
    assert Experiment(batched_clients=cohort).clients_per_batch == together


@pytest.mark.parametrize("cohort", ["0", "-1", "many", "", "1.5", "9" * 30])
def test_another_cohort_is_refused(cohort) -> None:
    with pytest.raises(
        InputError, match=f"Expected batched-clients=auto or a number from 1 to .*, got batched_clients={cohort}"
    ):
        Experiment(batched_clients=cohort)


# --- hyper-parameters ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Knobs:
    fast: bool = True
    steps: int = 3
    ratio: float = 0.5
    mode: Literal["hard", "soft"] = "hard"
    note: str = ""


@dataclass(frozen=True)
class MoreKnobs(Knobs):
    extra: int = 0


def test_bare_and_prefixed_assignments_reach_the_method() -> None:
    assignments = ["fast=false", "knob.steps=7", "ratio=1e-3", "mode=soft", "note=a=b.c"]
    assert build_settings(Knobs, "knob", assignments, bare=True) == Knobs(False, 7, 0.001, "soft", "a=b.c")


def test_only_prefixed_assignments_reach_other_plugins() -> None:
    assert build_settings(Knobs, "knob", ["steps=7", "nonsense=1", "knob.ratio=2"]) == Knobs(ratio=2.0)


def test_assignments_of_other_plugins_are_passed_over() -> None:
    assert build_settings(Knobs, "knob", ["other.steps=7", "other.nonsense=1", "knobs.steps=8"], bare=True) == Knobs()


def test_inherited_fields_can_be_set_and_the_last_assignment_holds() -> None:
    assert build_settings(MoreKnobs, "k", ["k.steps=4", "k.extra=2", "k.steps=5"]) == MoreKnobs(steps=5, extra=2)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "knob.step=1",
            "Got knob.step; did you mean steps? Expected a field of knob among fast, steps, ratio, mode, note.",
        ),
        ("step=1", "Got step; did you mean steps? Expected a field of knob among fast, steps, ratio, mode, note."),
        ("knob.steps=1.5", "Expected int for knob.steps, got knob.steps=1.5."),
        ("ratio=half", "Expected float for ratio, got ratio=half."),
        ("fast=yes", "Expected fast=true or false, got fast=yes."),
        ("knob.mode=firm", "Expected knob.mode among hard, soft, got knob.mode=firm."),
        ("steps", "Expected --set FIELD=VALUE, got 'steps'."),
        ("=3", "Expected --set FIELD=VALUE, got '=3'."),
    ],
)
def test_a_wrong_assignment_is_refused_in_one_voice(assignment, message) -> None:
    with pytest.raises(InputError) as caught:
        build_settings(Knobs, "knob", [assignment], bare=True)
    assert str(caught.value) == message


# --- the command line ---------------------------------------------------------------------------------------------


def test_no_flags_mean_the_defaults() -> None:
    assert sim.parse([]) == Command(Experiment())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "largest"), [pytest.param("lenet", 20_000, marks=pytest.mark.nightly), ("linear", 10_000)]
)
def test_a_full_disk_is_one_line(net: str, largest: int, tmp_path) -> None:
    """A limit on the size of files stands for it: of a checkpoint, or of the report."""
    # The data and their split may be in the cache already, or have to be written there before the limit.
    code = "import resource, sys, sim; from flfw.runs.run import check; check(sim.parse(sys.argv[1:]).experiment); "
    code += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest}, {largest})); sys.exit(sim.main(sys.argv[1:]))"
    flags = f"--method fedavg --net {net} --clients 2 --rounds 1 --local-epochs 1 --engine inproc --attack none"
    words = [sys.executable, "-c", code, *flags.split(), "--split", "iid", "--out", str(tmp_path / "run")]
    # Python would leave compiled modules cut off at the limit, for others to stumble over.
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200, env=variables)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]


def test_flags_fill_the_experiment() -> None:
    line = "--method fedavg --clients 4 --local-epochs 2 --lr 0.1 --engine inproc --audit-rounds 0,last --out a/b"
    line += " --attack ig analytic --set momentum=0 ig.iterations=5"
    assert sim.parse(line.split()).experiment == Experiment(
        method="fedavg",
        clients=4,
        local_epochs=2,
        lr=0.1,
        engine="inproc",
        audit_rounds="0,last",
        out=Path("a/b"),
        attack=("ig", "analytic"),
        set=("momentum=0", "ig.iterations=5"),
    )


@pytest.mark.parametrize(("arguments", "requested"), [([], None), (["--list"], ()), (["--list", "ig"], ("ig",))])
def test_list_is_told_apart_from_a_run(arguments, requested) -> None:
    assert sim.parse(arguments).list == requested


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """An empty folder to stand in; caches go beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FLFW_DATA", raising=False)
    (tmp_path / "here").mkdir()
    (tmp_path / "taken").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--nonsense", "1"], "Unrecognized options: --nonsense 1; see sim.py --help"),
        (["stray"], "Unrecognized options: stray; see sim.py --help"),
        (
            ["--clients", "many"],
            "Error parsing --clients: invalid literal for int() with base 10: 'many'; see sim.py --help",
        ),
        (
            ["--engine", "spark"],
            "invalid choice 'spark' for argument '--engine'. Expected one of ('ray', 'inproc', 'flwr-sim', 'flwr').; "
            "see sim.py --help",
        ),
        (["--sample", "11"], "Expected 0 <= sample <= clients=10, got sample=11."),
        (
            ["--method", "fedavgg"],
            "Got method=fedavgg; did you mean fedavg? Expected a method among {methods}, or package.module:Class.",
        ),
        (
            ["--dataset", "minst"],
            "Got dataset=minst; did you mean mnist? Expected a data set among {datasets}, folder:PATH, "
            "csv:FILE@TARGET, parquet:FILE@TARGET, text:FILE, hf:NAME, site:CxHxW:CLASSES or package.module:CARD.",
        ),
        (
            ["--attack", "igg"],
            "Got attack=igg; did you mean ig? Expected an attack among {attacks}, or package.module:Class.",
        ),
        (["--attack", "none", "ig"], "Expected an attack among {attacks}, or package.module:Class; got attack=none."),
        (
            ["--defence", "prun"],
            "Got defence=prun; did you mean prune? Expected a defence among {defences}, or package.module:Class.",
        ),
        (
            ["--net", "cnn9"],
            "Got net=cnn9; did you mean cnn1 or cnn2? Expected a network among {nets}, or package.module:name.",
        ),
        (["--net", "cnn2"], "Expected inputs of 3x32x32 for net=cnn2, got 1x32x32; choose another --net."),
        (["--split", "even"], "Expected a split among {splits}, or package.module:Class; got split=even."),
        (
            ["--method", "fedavg", "--set", "clip=1"],
            "Expected a field of fedavg among optimiser, momentum, weight_decay, lasting; got clip.",
        ),
        (
            ["--set", "ig.clip=1"],
            "Expected a field of ig among iterations, lr, tv, schedule, tv_told, signed, restarts, labels, "
            "start, private, prior, searches, flow_width, flow_iterations, flow_batch, flow_lr, flow_tv, flow_every, "
            "flow_weight, flow_steps, flow_guidance; got ig.clip.",
        ),
        (
            ["--set", "hyperfl.clap=1"],
            "Got hyperfl.clap; did you mean clip? Expected a field of hyperfl among optimiser, momentum, weight_decay, "
            "embedding, hidden, head_init, classifier_lr, classifier_epochs, clip, step, upload, keep_theta, "
            "upload_error.",
        ),
        (["--set", "dominant.clip=1"], "Expected a field of dominant among train, test, disjoint; got dominant.clip."),
        (
            ["--set", "fedprox.mu=1"],
            "Expected --set for a plug-in of this run among dominant, hyperfl, ig; got fedprox.mu.",
        ),
        (["--set", "momentum=1"], "Expected 0 <= momentum < 1, got momentum=1.0."),
        (
            ["--images", "5000"],
            "Expected at most 150 victims of client 0, got 151; lower --images, --victim-batch or --curve.",
        ),
        (
            ["--out", "{taken}"],
            "Expected a new folder for --out, got {taken}, which exists; choose another, or --resume it.",
        ),
        (
            ["--engine", "inproc", "--out", "/proc/nowhere"],
            "Expected a folder that can be made for --out, got /proc/nowhere (No such file or directory).",
        ),
        (
            ["--engine", "inproc", "--estimate", "--out", "/proc/nowhere"],
            "Expected a folder that can be made for --out, got /proc/nowhere (No such file or directory).",
        ),
        (
            ["--dataset", "lfw", "--data-root", "{taken}"],
            "Expected a data root with lfw-py/people.txt, lfw-py/lfw-names.txt, lfw-py/lfw_funneled, got "
            "data_root={taken} without; get the files with a copy of people.txt, lfw-names.txt and the unpacked "
            "lfw-funneled.tgz in the data root's folder lfw-py (source: http://vis-www.cs.umass.edu/lfw) or pass "
            "--data-root.",
        ),
        (["--image-size", "-1"], "Expected 0 <= image-size <= 4,096, got image_size=-1."),
        (
            ["--dataset", "cancer", "--method", "fedavg", "--expert", "augment=flip"],
            "Expected images for cancer to be varied, got augment=flip.",
        ),
        (
            ["--dataset", "cancer", "--method", "fedavg", "--image-size", "9"],
            "Expected images in cancer to be resized, got image_size=9.",
        ),
        (
            ["--expert", "normalise=imagenet"],
            "Expected colour images for normalise=imagenet, got inputs of 1x28x28; leave --expert normalise out.",
        ),
        (
            ["--table", "hyperfl.9"],
            "Got --table hyperfl.9; did you mean hyperfl.1, hyperfl.2 or hyperfl.3? Expected a table among {tables}.",
        ),
        (
            ["--cell", "hyperfl.1/HyperFLL"],
            "Expected a cell among hyperfl.1/Local-only, hyperfl.1/FedAvg, hyperfl.1/pFedHN, hyperfl.1/DP-FedAvg, "
            "hyperfl.1/CENTAUR, hyperfl.1/PPSGD, hyperfl.1/HyperFL; got --cell hyperfl.1/HyperFLL.",
        ),
        (
            ["--table", "hyperfl.1", "--estimate"],
            "Expected one of --resume, --estimate, --show-split, --table or --cell, --from, --purge, --matrix or "
            "--seeds, --compare, --figures, --verify, --pdf FOLDER, got --estimate and --table or --cell; each does a "
            "thing of its own.",
        ),
        (["--list", "nobody"], "Expected methods, defences, {sections}, or a name in them; got --list nobody."),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(elsewhere, capsys, arguments, line) -> None:
    from flfw import data, nets, plugins
    from flfw.data.splits import schemes
    from flfw.papers import command
    from flfw.papers.frontier.points import NAME

    methods, attacks = plugins.names(plugins.METHOD), plugins.names(plugins.ATTACK)
    defences = plugins.names(plugins.DEFENCE)
    fill = {
        "methods": ", ".join(methods),
        "attacks": ", ".join(attacks),
        "defences": ", ".join(defences) or "none yet",
        "nets": ", ".join(nets.names()),
        "datasets": ", ".join(data.names()),
        "sections": "attacks, datasets, splits, networks, tables",
        "splits": ", ".join(schemes.schemes()),
        "tables": ", ".join([*command.names(), NAME]),
        "taken": str(elsewhere.parent / "taken"),
    }
    before = sorted(p for p in elsewhere.parent.rglob("*") if "cache" not in p.parts)

    code = sim.main([argument.format_map(fill) for argument in arguments])

    printed = capsys.readouterr()
    assert (code, printed.out, printed.err) == (2, "", f"sim.py: {line.format_map(fill)}\n")
    assert sorted(p for p in elsewhere.parent.rglob("*") if "cache" not in p.parts) == before


def test_without_a_network_missing_data_are_one_line(elsewhere, capsys, monkeypatch) -> None:
    for variable in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # an earlier test's would know of no proxy
    assert sim.main(["--dataset", "usps", "--data-root", str(elsewhere / "data")]) == 2
    announced, line = capsys.readouterr().err.splitlines()
    assert announced.startswith("downloading https://www.csie.ntu.edu.tw/")
    assert line.startswith("sim.py: Expected to download https://") and "refused" in line
    assert line.endswith(f"copy the files into {elsewhere / 'data'} or name another folder by --data-root.")


def test_more_cores_than_there_are_is_bad_input(elsewhere, capsys) -> None:
    assert sim.main(["--cpus-per-client", "4096"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("sim.py: Expected cpus-per-client <= ")
    assert line.endswith(", this machine's; got 4096.\n")
    assert list(elsewhere.iterdir()) == []


def test_parse_errors_are_one_plain_line_where_the_terminal_knows_no_box_characters(tmp_path) -> None:
    words, ascii_alone = [str(ROOT / "sim.py"), "--nonsense", "1"], {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=ascii_alone, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "sim.py: Unrecognized options: --nonsense 1; see sim.py --help\n"


def processor_seconds(*command: str, cwd: Path) -> tuple[float, str]:
    """Seconds of the processor that a command takes, the least of three; and its output."""
    seconds = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(seconds), done.stdout


@pytest.mark.slow
def test_help_is_quick_and_needs_no_torch(tmp_path) -> None:
    parser_alone, _ = processor_seconds(sys.executable, "-c", "import tyro", cwd=tmp_path)
    seconds, printed = processor_seconds(sys.executable, str(ROOT / "sim.py"), "--help", cwd=tmp_path)
    assert "--local-epochs" in printed
    assert seconds < 3 * parser_alone + 0.3
    code = "import sys, sim; sim.parse([]); print({'torch', 'flwr', 'numpy', 'pandas'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "set()"


@pytest.mark.parametrize(
    ("method", "requested", "attacks"),
    [
        ("hyperfl", ("ig", "auto"), ("ig", "hyperfl")),
        ("fedavg", ("ig", "auto"), ("ig",)),
        ("hyperfl", ("auto",), ("hyperfl",)),
        ("hyperfl", ("hyperfl", "auto"), ("hyperfl",)),
        ("hyperfl", ("analytic",), ("analytic",)),
        ("hyperfl net=mlp", ("ig", "auto"), ("ig", "hyperfl")),  # it generates that layer
        ("fedavg net=mlp", ("ig", "auto"), ("ig", "analytic")),
        ("fedavg net=mlp", ("analytic", "auto"), ("analytic",)),
        ("fedavg net=linear", ("auto",), ("analytic",)),
        ("fedavg net=linear victim_batch=2", ("ig", "auto"), ("ig",)),
        ("fedavg net=linear defence=prune", ("ig", "auto"), ("ig",)),
        ("dp_fedavg net=linear", ("ig", "auto"), ("ig",)),
    ],
)
def test_auto_attacks_by_what_bears_the_methods_name_and_by_closed_forms_that_apply(
    method: str, requested: tuple[str, ...], attacks: tuple[str, ...]
) -> None:
    name, *words = method.split()
    more = {key: int(v) if v.isdigit() else v for key, _, v in (word.partition("=") for word in words)}
    assert without_auto(Experiment(method=name, attack=requested, **more)).attacks == attacks
    assert Experiment().attack == ("ig", "auto")


def test_auto_alone_is_refused_where_no_attack_bears_the_methods_name() -> None:
    with pytest.raises(
        InputError, match="Expected an attack beside auto, since none bears the method's name, got attack=auto"
    ):
        without_auto(Experiment(method="fedavg", attack=("auto",)))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "a=1", "--rounds", "3", "--set", "b=2"],
        ["--set=a=1", "--set=b=2", "--rounds=3"],
        ["--rounds", "3", "--set", "a=1", "b=2"],
    ],
)
def test_assignments_add_up_over_several_flags(arguments: list[str]) -> None:
    result = sim.parse(["--attack", "ig", *arguments, "--attack", "cpl"]).experiment
    assert (result.set, result.rounds, result.attack) == (("a=1", "b=2"), 3, ("cpl",))
