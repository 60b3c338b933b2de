"""The most that a technique could gain, from the baseline's profile: what cannot gain need not be tried.

A declaration says which part of a step its technique can shorten (``shortens``). The part's seconds in
the untouched program bound the gain on top of any plan, since the other techniques only make the part
smaller, or leave it: at most T / (T - part), T being the step of the plan that it is put on. So what is
not worth trying on the untouched program may be, once the rest of the step has become short.

A bound is given only where the profile supports it, and every doubt goes to the technique's side: the part
is taken half as large again, kernels that are not surely something else count as products, and a wait for
data counts only where a GPU does the work and processors are free.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from flatout.host import Host
from flatout.technique import Part, Technique
from flatout.trial import Outcome, Profile
from flatout.workload import Discovery

MARGIN = 1.5
"""One profiled step is not every step, and a technique may do a little beside its own part."""
SURE_OF_WAIT = 0.8
"""Of the measured wait for data: what is taken for certain."""
UNLIKE = 0.5
"""A profiled step shorter than this share of the usual one was another kind of step."""
SURELY_NO_PRODUCT = re.compile(
    r"elementwise|reduce_kernel|softmax|layer_norm|Memcpy|Memset|multi_tensor|embedding|CatArray|"
    r"^triton_(poi|red|per)_|index_|gather|scatter|dropout|nll_loss|batch_norm|max_pool|avg_pool",
    re.IGNORECASE,
)
"""Kernels of PyTorch and of its compiler whose names say that nothing is multiplied in them as matrices."""
COPY = re.compile(r"^Memcpy|^Memset")


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a technique can gain at most on top of a plan."""

    at_most: float
    """As a ratio of step times: 1.003 is 0.3 %."""
    reason: str


def bound_of(
    technique: Technique, *, baseline: Outcome, host: Host, usual_seconds: float, step_seconds: float
) -> Bound | None:
    """None where nothing can be said.

    ``usual_seconds``: the untouched program's step. ``step_seconds``: that of the plan which the technique
    is to be put on.
    """
    discovery, profile = baseline.discovery, baseline.profile
    if discovery is None or step_seconds <= 0:
        return None
    wait = _sure_wait(baseline, discovery, host)
    part = None
    if profile is not None and profile.wall_seconds >= UNLIKE * usual_seconds:
        part = _part_seconds(technique.shortens, profile, discovery)
    most = step_seconds - min(wait, step_seconds)
    if part is not None:
        most = min(most, MARGIN * part)
    if most >= step_seconds:
        return None
    at_most = step_seconds / (step_seconds - most)
    if part is None or MARGIN * part > step_seconds - wait:
        share = baseline.loader_wait_seconds_per_step / step_seconds
        what = f"the wait for data takes {min(1.0, share):.0%} of a step"
    else:
        what = f"{technique.shortens} took {_ms(part)}; a step now takes {_ms(step_seconds)}"
    return Bound(at_most=at_most, reason=f"at most {at_most:.3f}x: {what}")


def _part_seconds(part: Part, profile: Profile, discovery: Discovery) -> float | None:
    on_gpu = discovery.device.startswith("cuda")
    if part is Part.OPTIMIZER:
        return _optimizer_seconds(profile, discovery, on_gpu)
    if not on_gpu or not profile.kernels or part is Part.STEP:
        return None
    ruled_out = SURELY_NO_PRODUCT if part is Part.PRODUCTS else COPY
    others = sum(seconds for name, _, seconds in profile.kernels if ruled_out.search(name))
    return max(0.0, profile.device_busy_seconds - others)


def _optimizer_seconds(profile: Profile, discovery: Discovery, on_gpu: bool) -> float | None:
    """The host's time and the device's, as if they never overlapped."""
    host, device = profile.optimizer_host_seconds, profile.optimizer_device_seconds
    if len(discovery.optimizers) != 1 or not host:
        return None  # one of several may rest in the profiled step
    if not on_gpu:
        return host
    return host + device if device else None


def _sure_wait(baseline: Outcome, discovery: Discovery, host: Host) -> float:
    """Seconds of a step in which the program waits for its data whatever is done to the rest."""
    if not discovery.device.startswith("cuda"):
        return 0.0
    workers = sum(
        count for loader in discovery.loaders if isinstance(count := loader.get("num_workers"), int)
    )
    # where the loader shares processors with the program, a faster program makes a faster loader
    if host.cpu_count < 2 * discovery.world_size * (workers + 1):
        return 0.0
    return SURE_OF_WAIT * baseline.loader_wait_seconds_per_step


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
