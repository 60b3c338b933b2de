"""A fused attention that only the profile shows, as inside the program's own compiled graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.runners.mock import DISCOVERY
from flatout.search.baseline import with_attention
from flatout.trial import Outcome, Profile, State

HIDDEN = replace(DISCOVERY, attention="none", already={"compile": "torch.compile of GPT"})


def outcome(kernel, discovery=HIDDEN):
    profile = Profile(wall_seconds=0.03, device_busy_seconds=0.02, kernels=((kernel, 12, 0.003),))
    return Outcome(state=State.COMPLETED, discovery=discovery, profile=profile)


@pytest.mark.parametrize(
    "kernel",
    [
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64>>",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention)",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    ],
)
def test_a_fused_kernel_is_attention_already_there(kernel):
    found = with_attention(outcome(kernel)).discovery
    assert found.attention == "sdpa"
    assert found.already["sdpa"] == "fused attention kernels in its profile"
    assert found.already["compile"] == "torch.compile of GPT"


@pytest.mark.parametrize(
    "kernel", ["softmax_warp_forward", "sm90_xmma_gemm_bf16bf16", "triton_poi_fused_add_0"]
)
def test_other_kernels_are_not(kernel):
    given = outcome(kernel)
    assert with_attention(given) is given


def test_what_was_discovered_stands():
    given = outcome("flash_fwd_kernel", replace(HIDDEN, attention="hand-written"))
    assert with_attention(given) is given
