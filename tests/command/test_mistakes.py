"""Mistakes that are made at the prompt: each ends within a second, with a line that helps and exit code 2.

One of each kind is made in a process that has imported little, which shows that its answer imports nothing large."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import sim
from flfw.command import early, rehearse
from flfw.command.arguments import parse
from flfw.engines import machine
from flfw.errors import InputError
from tests.support.paths import ROOT

MOST_S = 1.0
GENEROUS = 2.0
"""Factor for a machine that others use as well: its caches are theirs."""

ALONE = (
    "--method hyperlf",
    "--dataset csv:{table}@targt",
    "--table hyperf.1",
    "--list hyperlf",
    "--matrix defences=none,soteria+prun attacks=ig",
    "--attak ig",
    "--clients ten",
    "--gpus-per-client 0.5 --engine inproc",
    "--resume {here}",
    "--set ig.iterations=many",
    "--track tensorbord",
    "--compare {here} {here}/nobody",
    "--policy {here}/nobody.toml",
)
"""Lines of which each imports what others do not."""

MISTAKES = [
    ("--method hyperlf", "Got method=hyperlf; did you mean hyperfl?"),
    ("--attack gradinversoin", "Got attack=gradinversoin; did you mean gradinversion?"),
    ("--defence prun", "Got defence=prun; did you mean prune?"),
    ("--net lennet5", "Got net=lennet5; did you mean lenet5?"),
    ("--dataset minst", "Got dataset=minst; did you mean mnist?"),
    ("--split dirchlet", "Got split=dirchlet; did you mean dirichlet?"),
    ("--table hyperf.1", "Got --table hyperf.1; did you mean hyperfl.1?"),
    ("--list hyperlf", "Got --list hyperlf; did you mean hyperfl?"),
    ("--matrix methods=fedavg,fedpr", "Got method=fedpr; did you mean fedper?"),
    ("--matrix defences=none,soteria+prun attacks=ig", "Got defence=prun; did you mean prune?"),
    ("--matrix methods=fedavg datasets=digits,minst", "Got dataset=minst; did you mean mnist?"),
    ("--matrix method=fedavg,fedper", "Got 'method=fedavg,fedper'; did you mean methods?"),
    ("--matrix seeds", "got 'seeds'."),
    ("--matrix seeds=0,1 --dataset minst", "Got dataset=minst; did you mean mnist?"),
    ("--matrix seeds=0,1 --dataset csv:{table}@targt", "Expected target targt among the columns of {table}"),
    ("--matrix methods=fedavg --net lennet5", "Got net=lennet5; did you mean lenet5?"),
    ("--matrix methods=fedavg --attack gradinversoin", "Got attack=gradinversoin; did you mean gradinversion?"),
    (
        "--dataset csv:{table}@targt",
        "Expected target targt among the columns of {table}, got age, target; did you mean",
    ),
    (
        "--dataset csv:{table}@target --set 'csv.separator=;'",
        "Expected target target among the columns of {table}, got ",
    ),
    ("--matrix datasets=digits,csv:{table}@targt", "Expected target targt among the columns of {table}"),
    ("--attak ig", "Unrecognized options: --attak ig; did you mean --attack?"),
    ("-method fedavg", "Unrecognized options: -method fedavg; did you mean --method?"),
    ("--engine inprocess", "; did you mean inproc?"),
    ("--rounds", "Missing value for argument '--rounds'."),
    ("--clients ten", "Error parsing --clients: invalid literal for int()"),
    ("--rounds 0", "Expected 1 <= rounds <= 1,000,000, got rounds=0."),
    ("--attack-gpus 1 --engine flwr", "Expected --engine ray with --attack-gpus, got engine=flwr."),
    ("--dataset office_caltech --data-root {here}", "Expected a data root with "),
    ("--dataset folder:phtos", "got folder:phtos; no folder is there."),
    ("--dataset text:novel.txt", "novel.txt"),
    ("--out {here}", "Expected a new folder for --out, got {here}, which exists; choose another, or --resume it."),
    ("--gpus-per-client 0.5", "Expected gpus-per-client <= 0, this machine's; got 0.5."),
    ("--gpus-per-client 0.5 --engine inproc", "Expected --gpus-per-client 0 on a machine without a GPU"),
    ("--resume {here}", "Expected a run with a checkpoint, got {here} without; start it anew."),
    ("--resume {here}/nobody", "Expected a run's folder, got {here}/nobody, which does not exist."),
    ("--set momentum 0.9", "Expected --set FIELD=VALUE, got 'momentum'."),
    ("--set momentun=0.9", "Got momentun; did you mean momentum?"),
    ("--set ig.iteration=5", "Got ig.iteration; did you mean iterations?"),
    ("--set ig.iterations=many", "Expected int for ig.iterations, got ig.iterations=many."),
    ("--defence prune --set prun.ratio=0.5", "Got prun.ratio for no plug-in; did you mean prune?"),
    ("--split dirichlet --set dirichlet.alpha=low", "Expected float for dirichlet.alpha, got dirichlet.alpha=low."),
    ("--set dirichlet.alhpa=1", "Got dirichlet.alhpa; did you mean alpha? Expected a field of dirichlet among alpha."),
    ("--matrix methods=fedavg,fedper --set momentun=0.9", "Got momentun; did you mean momentum?"),
    ("--matrix defences=none,prune --method fedavg --set prune.ratoi=0.9", "Got prune.ratoi; did you mean ratio?"),
    ("--matrix methods=fedavg --set prun.ratio=0.9", "Got prun.ratio for no plug-in; did you mean prune?"),
    ("--dataset csv:{table}@target --set csv.drop=aeg", "in csv.drop, got aeg; there are age; did you mean age?"),
    ("--dataset csv:{table}@target --set csv.patient=aeg", "in {table}, got aeg; did you mean age?"),
    ("--dataset csv:{table}@target --set csv.drp=age", "got drp; did you mean drop?"),
    ("--dataset folder:{table}", "got folder:{table}; no folder is there."),
    ("--track tensorbord", "Got tracker=tensorbord; did you mean tensorboard?"),
    ("--verify {here}/nobody", "Expected a finished run with result.json, got {here}/nobody without;"),
    ("--figures {here}/nobody", "Expected a finished run with result.json, got {here}/nobody without;"),
    ("--tampered-by ig", "got --tampered-by; it is called --malicious-server now"),
    ("--max-recordings-gb 5", "got --max-recordings-gb, which is gone; leave it out: it is 20"),
    ("--split whole", "Expected --split dataset_per_client, got its earlier name whole; rename it"),
    ("--curve batch=1 group=2", "Expected --curve sum_size=2, got its earlier name group=2; rename it"),
    ("--expert attack_timout=5", "got attack_timout=5; did you mean attack_timeout?"),
    ("--expert rounds=5", "got rounds=5; it is a flag, --rounds"),
    ("--pdf {here} --show-samples yes", "Expected flags that flfw report takes, got --show-samples; see flfw report"),
    ("--figures {here} --rounds 3", "Expected flags that flfw figures takes, got --rounds; see flfw figures --help."),
    ("--list ig --set ig.iterations=3", "Expected flags that flfw list takes, got --set; see flfw list --help."),
    ("--compare {here} {here}/a --engine ray", "Expected flags that flfw compare takes, got --engine; see flfw comp"),
    ("--compare {here}", "Expected two or more run folders to compare, got {here}."),
    ("--compare {here} {here}", "Expected different run folders to compare, got {here} twice."),
    ("--compare {here} {here}/nobody", "Expected a finished run with result.json, got {here} without;"),
]


IN_A_REHEARSAL = [
    ("--method fedvag", "Got method=fedvag; did you mean fedavg?"),
    ("--set ig.iteratons=3 --attack ig", "Got ig.iteratons; did you mean iterations?"),
    ("--dataset csv:{table}@targt", "Expected target targt among the columns of {table}"),
    ("--dataset folder:phtos", "got folder:phtos; no folder is there."),
    ("--out {here}", "Expected a new folder for --out, got {here}, which exists; choose another, or --resume it."),
    ("--policy {here}/nobody.toml", "Expected a policy in {here}/nobody.toml, got none that can be read"),
]


@dataclass(frozen=True)
class Prompt:
    """Folder where the mistakes are made, with a table beside it."""

    here: Path
    table: Path

    def filled(self, text: str) -> str:
        return text.format(here=self.here, table=self.table)


@pytest.fixture
def prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prompt:
    table = tmp_path.with_name(f"{tmp_path.name}.csv")
    table.write_text("age,target\n41,0\n")
    monkeypatch.chdir(tmp_path)
    return Prompt(tmp_path, table)


def skip_on_a_gpu(line: str) -> None:
    if "gpus" in line and machine.may_have_gpu():
        pytest.skip("this machine may have a GPU, of which PyTorch is asked")


ROWS = [*(("sim.py", *one) for one in MISTAKES), *(("flfw.command.rehearse", *one) for one in IN_A_REHEARSAL)]


FORKS = """
import json, os, sys, time, sim, flfw.command.rehearse as rehearse
ends, base, paths = [], time.process_time(), [f"{sys.argv[2]}/{stream}" for stream in (1, 2)]
for program, words in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        for stream in (1, 2): os.dup2(os.open(paths[stream - 1], os.O_CREAT | os.O_TRUNC | os.O_WRONLY), stream)
        os._exit((sim if program == "sim.py" else rehearse).main(words))
    _, status, used = os.wait4(child, 0)
    seconds = base + used.ru_utime + used.ru_stime
    ends.append([os.waitstatus_to_exitcode(status), *(open(path).read() for path in paths), seconds])
print(json.dumps(ends))
"""
"""Makes each mistake in a process of its own that has imported the programs and nothing more."""


def test_a_mistake_is_answered_within_a_second(prompt: Prompt, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = [row for row in ROWS if row[1] in ALONE and not ("gpus" in row[1] and machine.may_have_gpu())]
    given = json.dumps([(program, shlex.split(prompt.filled(line))) for program, line, _ in rows])
    command = [sys.executable, "-uc", FORKS, given, str(tmp_path_factory.mktemp("printed"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    for (_, line, text), (code, out, err, seconds) in zip(rows, json.loads(done.stdout), strict=True):
        assert (code, out, err.count("\n")) == (2, "", 1), (line, err)
        assert prompt.filled(text) in err and seconds < MOST_S * GENEROUS, (line, err, seconds)
    assert list(prompt.here.iterdir()) == []


def test_other_mistakes_are_answered_before_anything_is_loaded(
    prompt: Prompt, subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*given: object) -> None:
        raise AssertionError("the run was begun")

    monkeypatch.setattr("flfw.command.program._perform", load)
    for program, line, words in ROWS:
        with subtests.test(f"{program} {line}"):
            skip_on_a_gpu(line)
            main = sim.main if program == "sim.py" else rehearse.main
            code, printed = main(shlex.split(prompt.filled(line))), capsys.readouterr()
            assert (code, printed.out) == (2, "")
            assert prompt.filled(words) in printed.err and printed.err.count("\n") == 1
    assert len({row[1] for row in ROWS if row[1] in ALONE}) == len(ALONE)
    assert list(prompt.here.iterdir()) == []


def test_assignments_beside_a_stored_run_are_not_taken_for_those_of_the_default_method(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / f"experiment-{'0' * 64}.json").write_text("{}")
    early.check(parse(["--resume", str(tmp_path), "--set", "mu=0.5"]))
    early.check(parse(["--from", str(tmp_path), "--set", "mu=0.5", "ig.iterations=3"]))
    with pytest.raises(InputError, match=r"Expected a field of hyperfl among .*; got mu"):
        early.check(parse(["--set", "mu=0.5"]))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--method fedprox --set mu=0.5 fedprox.mu=0.1",
        "--method hyperfl --attack hyperfl --set hyperfl.iterations=3 hidden=8",
        "--split dirichlet --set dirichlet.alpha=0.1",
        "--method my.own:Method --set whatever=1 Method.whatever=1",
        "--attack my.own:Attack --set Attack.whatever=1",
        "--defence soteria prune --set prune.ratio=0.9 soteria.ratio=0.5",
        "--dataset my.own:CARD --net my.own:net --split my.own:Split --set Split.parts=3",
        "--dataset digit5:usps,mnist",
        "--dataset hf:somebody/something",
        "--dataset site:1x28x28:10 --federation fed --attack none",
        "--table hyperfl.1",
        "--cell hyperfl.1/HyperFL",
        "--matrix methods=fedavg,my.own:Method datasets=digits --net linear",
        "--matrix methods=fedavg seeds=0 --dataset hf:somebody/something --attack none",
        "--table my.own:TABLE",
        "--net resnet18_imagenet --set resnet18_imagenet.reduction=4",
    ],
)
def test_right_command_lines_pass(line: str) -> None:
    early.check(parse(shlex.split(line)))


def test_settings_of_a_table_are_no_mistake_and_a_misspelt_prefix_is_answered(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n")
    line = f"--method fedavg --dataset csv:{tmp_path / 't.csv'}@y --attack none --set"
    early.check(parse([*line.split(), "csv.drop=a", "csv.encoding=latin-1"]))
    (tmp_path / "t.csv").write_text("a:y\n1:0\n2:1\n")
    (tmp_path / "t.csv.toml").write_text('separator = ":"\n')
    early.check(parse(line.split()[:-1]))
    with pytest.raises(InputError, match=r"Got parqet\.drop for no plug-in; did you mean parquet\?"):
        early.check(parse([*line.split(), "parqet.drop=a"]))


def test_no_gpu_is_denied_where_there_is_one() -> None:
    assert machine.may_have_gpu() or not torch.cuda.is_available()
