"""Hyper-parameters of training through a hypernetwork, for the methods whose clients share one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flfw.errors import require
from flfw.nets.hypernetwork import HeadInit
from flfw.nets.training.optimisers import LocalTraining


@dataclass(frozen=True)
class HypernetworkTraining(LocalTraining):
    """Hyper-parameters beside those of SGD, which serve both steps; eta_h = eta_v is the experiment's lr."""

    embedding: int = 64  # length of v
    hidden: int = 128  # width of the hypernetwork
    head_init: HeadInit = "fan_in"
    classifier_lr: float = 0.1  # eta_g, > 0
    classifier_epochs: int = 1  # passes over the data in step A
    clip: float = 50.0  # L2 bound of a step's gradient, once for varphi and once for v; > 0
    step: Literal["low_rank", "dense"] = "low_rank"  # how step B is computed; the same but for rounding, see the client
    upload: Literal["dense", "factors"] = "dense"  # factors: the heads' change in low rank, rounded and deflated
    keep_theta: bool = False  # clients keep theta for a round, to report theta_change_between_rounds
    upload_error: float = 1e-3  # of upload=factors: error of the sent tensors, over their change (L2); in (0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.embedding >= 1, "embedding >= 1", embedding=self.embedding)
        require(self.hidden >= 1, "hidden >= 1", hidden=self.hidden)
        require(self.classifier_lr > 0, "classifier_lr > 0", classifier_lr=self.classifier_lr)
        require(self.classifier_epochs >= 1, "classifier_epochs >= 1", classifier_epochs=self.classifier_epochs)
        require(self.clip > 0, "clip > 0", clip=self.clip)
        require(0 < self.upload_error < 1, "0 < upload_error < 1", upload_error=self.upload_error)
