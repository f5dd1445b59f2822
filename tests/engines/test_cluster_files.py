"""Files of examples/cluster, as far as they can be tried without a cluster: their words, and the script at work."""

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

import sim
from tests.campaigns.ray_nodes import end_all
from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "cluster"
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
if [ "$1" = hostname ]; then echo 127.0.0.1; exit; fi
if [[ "$*" == "ray start --head"* ]]; then exec "$@" --temp-dir="$RAY_FOLDER"; fi
if [ "$1 $2" = "ray start" ]; then exec "$@" --node-ip-address=127.0.0.1; fi
exec "$@"
"""


def options(command: str) -> set[str]:
    shown = subprocess.run([sys.executable, "-m", "ray.scripts.scripts", *command.split(), "--help"], text=True,
                           capture_output=True, check=True)  # fmt: skip
    return {word.rstrip(",") for word in shown.stdout.split() if word.startswith("--")}


@pytest.mark.nightly
@pytest.mark.parametrize("file", ["slurm.sbatch", "machines.yaml"])
def test_ray_knows_the_options_of_its_commands(file: str) -> None:
    text = (FOLDER / file).read_text()
    used = {word.partition("=")[0].strip('()"') for word in text.split() if word.strip('()"').startswith("--")}
    ours = {"--method", "--rounds", "--data-root", "--out", "--resume", "--ray-address", "--gpus-per-client"}
    slurms = {"--overlap", "--nodes", "--ntasks", "--nodelist", "--ip-address", "--job-name", "--ntasks-per-node"}
    slurms |= {"--cpus-per-task", "--time", "--gpus-per-node"}
    known = options("start")
    rays = used - ours - slurms - {"--*"}
    assert {"--head", "--port"} <= rays
    assert rays <= known | options("health-check")


def test_the_job_on_kubernetes_starts_a_run_that_is_understood() -> None:
    job = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    program, script, *words = shlex.split(job["spec"]["entrypoint"])
    assert (program, script) == ("python", "/opt/flfw/sim.py")
    experiment = sim.parse(words).experiment
    assert (experiment.ray_address, experiment.method, experiment.rounds) == ("auto", "hyperfl", 200)
    cluster = job["spec"]["rayClusterSpec"]
    (worker,) = cluster["workerGroupSpecs"]
    assert cluster["headGroupSpec"]["template"] == worker["template"], "one image, and the same paths"
    mounts = worker["template"]["spec"]["containers"][0]["volumeMounts"]
    assert str(experiment.out).startswith(mounts[0]["mountPath"])


def test_ray_accepts_the_group_of_machines() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(yaml.safe_load((FOLDER / "machines.yaml").read_text()))
    validate_config(config)
    assert config["provider"]["worker_ips"] == ["10.0.0.2", "10.0.0.3"]


@pytest.mark.nightly
@pytest.mark.early
def test_the_job_of_slurm_runs_and_goes_on(tmp_path: Path) -> None:
    """With commands in the place of Slurm's that do on this machine what these do on several."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "srun").write_text(SRUN)
    (tools / "scontrol").write_text("#!/bin/bash\necho one\necho two\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").write_text(f'export PATH="{tools}:{Path(sys.executable).parent}:$PATH"\n')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with TemporaryDirectory(prefix="fl-") as short:
        variables = {**os.environ, "VENV": str(tmp_path / "venv"), "PORT": str(port), "RAY_FOLDER": short}
        variables |= {"SLURM_JOB_NODELIST": "one,two", "SLURM_CPUS_PER_TASK": "1", "FLFW_JOB": short}
        variables |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
        words = ["--method", "fedavg", "--clients", "3", "--rounds", "2", "--local-epochs", "1", "--attack", "none"]
        out = tmp_path / "run"
        lines = [submitted([*words, "--out", str(out)], variables) for _ in range(2)]
        assert "round 2/2" in lines[0] and "round 2/2" not in lines[1], "the second had nothing left to do"


def submitted(words: list[str], variables: dict[str, str]) -> str:
    """Run the job as Slurm does, which ends all that is left of it."""
    log = Path(variables["RAY_FOLDER"]).with_suffix(".log")
    try:
        with log.open("w") as lines:
            done = subprocess.run(["bash", str(FOLDER / "slurm.sbatch"), *words], cwd=ROOT, env=variables,
                                  stdout=lines, stderr=lines, timeout=500, check=False)  # fmt: skip
        text = log.read_text()
        assert done.returncode == 0, text
        return text
    finally:
        end_all("FLFW_JOB", variables["FLFW_JOB"])
        log.unlink(missing_ok=True)
