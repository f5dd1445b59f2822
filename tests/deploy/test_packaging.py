"""Packages for real sites: each file parses, keeps its promises, and its commands work as plain processes."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from flfw.deploy.__main__ import main
from flfw.server.checkpoint import is_complete
from tests.support.paths import ROOT
from tests.support.sites_at_work import free_ports

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
SITES = ("site-0", "site-1", "site-2")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SECRETS = re.compile(r"BEGIN [A-Z ]*PRIVATE KEY|password|passwd|token=|[0-9a-f]{40}", re.IGNORECASE)
REGISTRY = re.compile(r"(docker\.io|ghcr\.io|quay\.io|gcr\.io|https?://)")
MOST_EXPOSED = 2.0  # of 10


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests(name: str) -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in documents}


def instructions() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile with their words, continued lines joined."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    full = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in full.splitlines() if line.strip()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_no_file_has_a_secret_or_names_a_registry(path: Path) -> None:
    text = path.read_text()
    assert not SECRETS.search(text) and not REGISTRY.search(text)


def test_the_image_is_of_code_alone_and_its_user_is_not_root() -> None:
    steps = instructions()
    assert [words for name, words in steps if name == "FROM"] == ["python:3.11-slim"]
    assert [words for name, words in steps if name == "USER"] == ["10001:10001"]
    names = [name for name, _ in steps]
    assert names.index("USER") > max(index for index, name in enumerate(names) if name in ("RUN", "COPY"))
    assert set(names) <= {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD"}
    copied = [source for name, words in steps if name == "COPY" for source in words.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "research"}
    assert packages | {"sim.py", "requirements.txt", "pyproject.toml", "LICENSE", "README.md"} == set(copied)


def test_each_container_is_locked_and_each_site_is_alone_with_the_server() -> None:
    file = compose()
    services = file["services"]
    assert set(services) == {"server", *SITES} and set(file["networks"]) == set(SITES)
    assert all(network == {"internal": True} for network in file["networks"].values())
    for name, service in services.items():
        assert service["user"] == "10001:10001" and service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"] and service["healthcheck"]["test"][0] == "CMD"
        assert not {"privileged", "ports", "network_mode", "pid", "devices", "cap_add"} & set(service)
        assert not any("docker.sock" in volume for volume in service["volumes"])
        if name == "server":
            assert set(service["networks"]) == set(SITES)
            assert not any(
                "ca.key" in one or re.search(r"site-\d/(data|state|node-key:)", one) for one in service["volumes"]
            )
            continue
        assert service["networks"] == [name] and service["depends_on"]["server"]["condition"] == "service_healthy"
        mounted = dict(volume.split(":", 1) for volume in service["volumes"])
        assert all(source.startswith((f"./fed/{name}", f"./fed/start/3-{name}.sh")) for source in mounted)
        read_only = {source for source, target in mounted.items() if target.endswith(":ro")}
        assert {f"./fed/{name}/{part}" for part in ("data", "policy.toml", "node-key")} < read_only
        assert all(target.removesuffix(":ro") == source.removeprefix(".") for source, target in mounted.items())


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    pod = document["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.mark.parametrize("name", ["server.yaml", "site.yaml"])
def test_pods_are_locked_and_run_the_commands_of_the_containers(name: str) -> None:
    documents, services = manifests(name), compose()["services"]
    deployment = next(one for kind, one in documents.items() if kind.startswith("Deployment"))
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"]
    assert deployment["spec"]["replicas"] == 1 and deployment["spec"]["strategy"] == {"type": "Recreate"}
    volumes = {volume["name"] for volume in pod["volumes"]}
    for one in containers(deployment):
        context = one["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]} and one["image"] == "flfw"
        assert {mount["name"] for mount in one["volumeMounts"]} <= volumes
    service = services["server" if name == "server.yaml" else "site-0"]
    (started,) = pod["containers"]
    assert started["command"] == service["entrypoint"]
    assert started["env"] == [{"name": key, "value": value} for key, value in service["environment"].items()]
    if name == "site.yaml":
        assert started["livenessProbe"]["exec"]["command"] == service["healthcheck"]["test"][1:]
        rules = documents["NetworkPolicy/site"]["spec"]
        ports = [port["port"] for rule in rules["egress"] for port in rule["ports"]]
        assert rules["ingress"] == [] and ports == [9092, 53] and not any("key" in kind.lower() for kind in documents)
    claims = {kind.split("/")[1] for kind in documents if kind.startswith("PersistentVolumeClaim")}
    assert {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v} == claims


def settings(unit: Path) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
    return values


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_are_valid_and_hardened(unit: Path, tmp_path: Path) -> None:
    chosen = settings(unit)
    part = "superlink" if "server" in unit.name else "site-%i"
    assert chosen["ReadWritePaths"] == [f"/srv/flfw/fed/{part}"] and "root" not in chosen["User"]
    assert chosen["NoNewPrivileges"] == ["yes"] and chosen["CapabilityBoundingSet"] == [""]
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        pytest.skip("there is no systemd-analyze")
    script = tmp_path / "start.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    copy = tmp_path / unit.name.replace("@", "@0")
    text = re.sub(r"^ExecStart=.*$", f"ExecStart={script}", unit.read_text(), flags=re.MULTILINE)
    copy.write_text(text)
    verified = subprocess.run([analyse, "verify", str(copy)], capture_output=True, text=True, check=False)
    mine = [line for line in verified.stderr.splitlines() if unit.name.partition("@")[0].partition(".")[0] in line]
    assert not mine, mine
    judged = subprocess.run([analyse, "security", "--offline=true", str(copy)], capture_output=True, text=True)
    level = re.search(r"exposure level for .*: ([0-9.]+)", judged.stdout)
    assert level and float(level[1]) <= MOST_EXPOSED, judged.stdout + judged.stderr


@pytest.mark.parametrize("script", sorted((DEPLOY / "slurm").iterdir()), ids=lambda path: path.name)
def test_job_scripts_are_valid_and_their_first_lines_are_for_slurm(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    lines = script.read_text().splitlines()
    options = [line for line in lines if line.startswith("#SBATCH ")]
    first = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(lines.index(option) < first for option in options) and all("--" in option for option in options)
    assert os.access(script, os.X_OK)


# --- as plain processes -----------------------------------------------------------------------------------------


def variables(tmp: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp), **more}


@contextmanager
def started(words: list[str], folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, which is ended with all that it started."""
    with (folder / f"{Path(words[-1]).name}.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def here(words: list[str], fed: Path, ports: dict[int, int]) -> list[str]:
    """The words of a container with this federation's folder in place of /fed, and its ports in place of the usual."""
    texts = [word.replace("/fed/", f"{fed}/") if word.startswith("/fed/") else word for word in words]
    return [re.sub(r"\b(90\d\d|92\d\d)\b", lambda port: str(ports[int(port[0])]), word) for word in texts]


def healthy(test: list[str], environment: dict[str, str], seconds: float = 240) -> bool:
    """Run a health check as it is written, until it succeeds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if subprocess.run(test, env=environment, capture_output=True, check=False).returncode == 0:
            return True
        time.sleep(1)
    return False


@pytest.mark.nightly
@pytest.mark.timeout(800)
def test_the_words_of_the_containers_make_a_federation(tmp_path: Path) -> None:
    """Server and a site by the words of compose.yaml, two sites by the job script, registration and a run."""
    first, *_ = numbers = free_ports(6)
    ports = {9092: first, 9093: first + 1, 9200: first + 2, 9201: first + 3, 9202: first + 4}
    fed, services, tmp, neutral = tmp_path / "fed", compose()["services"], tmp_path / "tmp", tmp_path / "neutral"
    tmp.mkdir()
    neutral.mkdir()
    places = ["--port", str(first), "--control-port", str(numbers[1]), "--site-port", str(numbers[2])]
    assert main(["init", str(fed), "--clients", "3", "--methods", "fedavg", *places]) == 0
    (fed / "runs").mkdir()
    environment = variables(tmp)
    with ExitStack() as stack:
        for name in ("server", *SITES):
            service = services[name]
            words = here(service["entrypoint"], fed, ports)
            if name in ("site-1", "site-2"):
                words = [str(DEPLOY / "slurm" / "site.sbatch"), str(fed), name.removeprefix("site-")]
            given = {key: value.replace("/fed", str(fed)) for key, value in service["environment"].items()}
            more = {**given, "FLFW_PYTHON": sys.executable}
            stack.enter_context(started(words, neutral, variables(tmp, **more)))
            if name == "server":
                check = here(service["healthcheck"]["test"][1:], fed, ports)
                assert not healthy(["python", "-c", check[2].replace(str(first), "1")], environment, 0.5)
                assert healthy(check, environment)
                register = ["sh", str(fed / "start" / "2-register.sh")]
                assert subprocess.run(register, env=environment, cwd=neutral, check=False, timeout=120).returncode == 0
        for name in SITES:
            assert healthy(here(services[name]["healthcheck"]["test"][1:], fed, ports), environment), name
        run = "python -m sim --federation /fed --clients 3 --rounds 1 --attack none --out /fed/runs/first"
        words = [*shlex.split(run.replace("/fed", str(fed))), "--method", "fedavg", "--local-epochs", "1"]
        done = subprocess.run(words, env=environment, cwd=neutral, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        second = subprocess.run(
            [str(DEPLOY / "slurm" / "site.sbatch"), str(fed), "1"],
            env={**environment, "FLFW_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (second.returncode, second.stderr) == (2, "site 1 is at work in another job\n")
    assert is_complete(fed / "runs" / "first")


@pytest.mark.nightly
@pytest.mark.timeout(800)
def test_a_simulation_job_that_gets_sigterm_goes_on_when_it_is_put_back(tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = "--method fedavg --clients 3 --local-epochs 1 --rounds 60 --engine inproc --attack none --split iid"
    words = [str(DEPLOY / "slurm" / "simulation.sbatch"), str(out), *flags.split()]
    environment = variables(tmp_path, FLFW_PYTHON=sys.executable)
    environment.pop("SLURM_JOB_ID", None)
    job = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    assert job.stderr is not None
    while not job.stderr.readline().startswith("round 3/"):
        assert job.poll() is None
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 143 and not is_complete(out)
    job.stderr.close()
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 and "round 1/60" not in done.stderr
    assert is_complete(out)


@pytest.mark.nightly
def test_the_entry_point_of_the_image_is_a_command() -> None:
    (entry,) = [yaml.safe_load(words) for name, words in instructions() if name == "ENTRYPOINT"]
    (command,) = [yaml.safe_load(words) for name, words in instructions() if name == "CMD"]
    done = subprocess.run([sys.executable, *entry[1:], *command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert entry[0] == "python" and "init" in done.stdout
