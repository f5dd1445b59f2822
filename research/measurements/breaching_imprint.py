"""Imprint module and read-out of `breaching` 0.1.2: ``python breaching_imprint.py FOLDER``.

It runs in a separate environment (`breaching_env`) and imports nothing of this project. It reads FOLDER/problem.json
and FOLDER/problem.safetensors and writes FOLDER/answer.safetensors. The module is their `ImprintBlock` as their
configuration of a malicious server has it, but for the number of bins; the read-out is their `ImprintAttacker` under
its configuration ``imprint``. k is the number of bins, d = C * H * W.

problem.json
    mode        "module" or "read".
    shape       [C, H, W].
    mean, std   per channel; images are normalised by them.
    bins        k.
    threads     of PyTorch within an operation.
    sizes       "read": the number of images in each batch.

problem.safetensors ("read"; a file without tensors for "module")
    measure.weight (k, d), measure.bias (k,), back.weight (d, k), back.bias (d,)
                the module as the client received it, in front of the network.
    N.measure.weight, N.measure.bias
                the gradients seen of batch number N.

answer.safetensors
    "module": the four tensors of the module under the names above.
    "read": N.images (sizes[N], C, H, W), normalised; missing ones are 0.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import breaching  # pyright: ignore[reportMissingImports]  # in a separate environment
import torch
from breaching.cases.malicious_modifications import ImprintBlock  # pyright: ignore[reportMissingImports]
from safetensors.torch import load_file, save_file
from torch import Tensor

_NAMES = {"measure.weight": "linear0.weight", "measure.bias": "linear0.bias"}
_NAMES |= {"back.weight": "linear2.weight", "back.bias": "linear2.bias"}


def block(shape: list[int], bins: int) -> Any:
    """Build their module: their server's mode 32 of the cosine transform, connection and gain of 1."""
    server = breaching.get_case_config(overrides=["server=malicious-model-rtf"]).server.model_modification
    torch.manual_seed(0)  # the second layer's bias keeps a random part
    return ImprintBlock(
        tuple(shape), bins, connection=server.connection, gain=server.gain, linfunc=server.linfunc, mode=server.mode
    )


def read(problem: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Read each batch off the gradients of the module."""
    module = block(problem["shape"], problem["bins"])
    attacker = breaching.attacks.prepare_attack(module, torch.nn.MSELoss(), breaching.get_attack_config("imprint"))
    normalisation = SimpleNamespace(modality="vision", shape=problem["shape"], mean=problem["mean"], std=problem["std"])
    order = {theirs: ours for ours, theirs in _NAMES.items()}
    names = [order[name] for name, _ in module.named_parameters()]
    payload = {"parameters": [tensors[name] for name in names], "buffers": [], "metadata": normalisation}
    secret = {"weight_idx": names.index("measure.weight"), "bias_idx": names.index("measure.bias")}
    secrets = {"ImprintBlock": {**secret, "shape": problem["shape"], "structure": ImprintBlock.structure}}
    images = {}
    for number, size in enumerate(problem["sizes"]):
        seen = [tensors.get(f"{number}.{name}", torch.zeros_like(tensors[name])) for name in names]
        metadata = {"num_data_points": size, "labels": None, "local_hyperparams": None}
        shared = {"gradients": seen, "buffers": None, "metadata": metadata}
        result, _ = attacker.reconstruct([payload], [shared], secrets)
        images[f"{number}.images"] = result["data"].contiguous()
    return images


def main(folder: Path) -> None:
    """Read the problem in a folder and write the answer beside it."""
    problem = json.loads((folder / "problem.json").read_text())
    torch.set_num_threads(problem["threads"])
    if problem["mode"] == "module":
        state = block(problem["shape"], problem["bins"]).state_dict()
        answer = {ours: state[theirs].contiguous() for ours, theirs in _NAMES.items()}
    else:
        answer = read(problem, load_file(folder / "problem.safetensors"))
    save_file(answer, folder / "answer.safetensors")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(Path(sys.argv[1]))
