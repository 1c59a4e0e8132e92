"""The table of kernels: every name has one kind, and times add up."""

from __future__ import annotations

import pytest

from kernels import KINDS, kind_of, per_image


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_wgrad_implicit_gemm_bf16", "weights of convolutions, backward"),
        ("cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad>", "images of convolutions, backward"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16", "convolutions and matrix products"),
        ("_normalise", "normalisation, shortcut and ReLU"),
        ("_descend_kernel", "normalisation, shortcut and ReLU"),
        ("multi_tensor_apply_kernel<FusedSgdMathFunctor>", "SGD"),
        ("Memcpy DtoD (Device -> Device)", "copies and casts"),
        ("reduce_kernel<512, 1>", "other"),
    ],
)
def test_a_kernel_is_known_by_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_times_are_per_image_and_add_up() -> None:
    found = per_image([("wgrad_a", 30.0), ("wgrad_b", 10.0), ("_augment", 5.0)], images=10)
    assert found["weights of convolutions, backward"] == 4.0
    assert found["augmentation"] == 0.5
    assert sum(found.values()) == 4.5
    assert set(found) == {kind for kind, _ in KINDS}
