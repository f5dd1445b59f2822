"""Images that an attack could not have recovered, by hand: what is counted, what is said, and where nothing is."""

from typing import Any

import pytest

from flfw.attacks.rog import ROG, ROGSettings
from flfw.audit.jobs import JobResult
from flfw.audit.reconstruction.entries import entry, out_of_reach
from flfw.audit.reconstruction.reconstruction_evidence import ControlResult, ControlResults, ReconstructionEvidence

FLOORS = ("grey", "nearest_public", "unguided")


def row(ceiling: float | None, psnr: float | None, grey: float = 9.0, **more: Any) -> dict[str, Any]:
    return {"ceiling": ceiling, "psnr": psnr, "floor_grey": grey, "floor_nearest_public": 12.0, **more}


def test_an_image_is_out_of_reach_where_even_the_nearest_of_the_form_would_not_count() -> None:
    rows = [row(15.0, 14.0), row(17.0, 9.0), row(25.0, 19.0), row(15.0, None)]
    assert out_of_reach(rows, FLOORS) == (
        "This attack could not have recovered 3 of 4 images: the nearest image that its search can give is 15.7 dB "
        "from these on average, and a recovered one has 20.0 dB or more. In 1 of them it came within 3 dB of that "
        "nearest image."
    )


def test_the_floors_of_an_image_count_as_well() -> None:
    """A public look-alike of 24 dB asks for 25 dB, which an image of 22 dB is not."""
    assert "a recovered one has 25.0 dB or more" in out_of_reach([row(22.0, 10.0, grey=24.0)], FLOORS)
    assert out_of_reach([row(22.0, 21.5)], FLOORS) == ""
    assert "within 3 dB" not in out_of_reach([row(22.0, 10.0, grey=24.0)], FLOORS)


def test_nothing_is_said_without_a_ceiling_and_within_its_own_uncertainty() -> None:
    assert out_of_reach([row(None, 12.0)], FLOORS) == "" == out_of_reach([], FLOORS)
    assert out_of_reach([row(19.95, 19.0)], FLOORS) == "" != out_of_reach([row(19.85, 19.0)], FLOORS)


@pytest.mark.parametrize("bounded", [True, False])
def test_the_sentence_stands_beside_a_verdict_that_it_does_not_change(bounded: bool) -> None:
    description = {"attack": "rog", "adaptive": True, "batch": 1, "steps": 1, "iterations": 100, "round": 0}
    scores: dict[str, Any] = dict.fromkeys(("ssim", "gain", "rank", "db", "exact_features", "rmsd", "iterations"))
    scores |= {"recovered": False, "failed": False, "probe_slot": 0, "chance_match": False, "floor_features": None}
    scores |= {"succeeded": False, "client": 0, "image": 0, "lpips": None}
    controls = ControlResults(ControlResult(150.0, True), ControlResult(40.0, True))
    result = JobResult("", (None,))
    target = ReconstructionEvidence(controls, bounded=bounded)
    both = [entry(description, result, [row(ceiling, 14.0, **scores)], 1, 0, target) for ceiling in (15.0, 25.0)]
    assert both[0]["verdict"] == both[1]["verdict"] == "undecided" and both[0]["reason"] == both[1]["reason"]
    assert bool(both[0]["search_limit"]) is bounded and both[1]["search_limit"] is None


def test_a_post_processor_is_not_bounded_by_the_ceiling_of_the_search_before_it() -> None:
    assert ROG().bounded and not ROG(ROGSettings(post="unet")).bounded
