"""Small made-up applications for the tests of signatures."""

from kernels.kernel_mix import MixRow
from kernels.signatures import Signature

CHAT = {
    ("gemm", "gemm"): 60.0,
    ("attention", "attention"): 30.0,
    ("silu_kernel", "elementwise"): 10,
}
VISION = {("conv", "conv"): 70.0, ("norm", "norm"): 20.0, ("relu_kernel", "elementwise"): 10.0}
SORTING = {("DeviceScanKernel", "sort_scan"): 90.0, ("index_kernel", "gather_scatter"): 10.0}


def made(
    name: str, application: str, shares: dict[tuple[str, str], float], tilt: float = 1.0
) -> Signature:
    """A profile whose first operation is `tilt` times as frequent as in `shares`."""
    first = next(iter(shares))
    rows = tuple(
        MixRow(*place, share * (tilt if place == first else 1.0), share * 1_000.0)
        for place, share in shares.items()
    )
    return Signature(name, application, "H100", "a test", rows)


def three_classes() -> list[Signature]:
    return [
        made("chat_a", "llm_inference", CHAT),
        made("chat_b", "llm_inference", CHAT, 1.2),
        made("vision_a", "image_classification", VISION),
        made("vision_b", "image_classification", VISION, 1.3),
        made("sort", "dataframe_analytics", SORTING),
    ]
