"""The first scan backend that supports a case and is installed."""

from collections.abc import Sequence
from typing import Any

import pytest

from components.errors import RecipeError
from components.scan_backends import SCAN_BACKENDS, ScanBackend, ScanCase, select_scan

KEY = "model.mixers.a.scan_backends"
CASE = ScanCase("Mamba2", "cuda", "bfloat16", 128)


@pytest.mark.parametrize(
    ("order", "changes", "missing", "expected"),
    [
        (SCAN_BACKENDS, {}, (), "fla"),
        (("mamba_ssm", "fla"), {}, (), "mamba_ssm"),
        (("mamba_ssm", "fla"), {"device": "rocm"}, (), "mamba_ssm"),
        (("mamba_ssm", "fla"), {"device": "xpu", "dtype": "float16"}, (), "fla"),
        (("mamba_ssm", "fla"), {"mixer": "KimiDelta"}, (), "fla"),
        (("fla", "mamba_ssm"), {"key_dim": 256}, (), "fla"),
        (("fla", "mamba_ssm"), {"key_dim": 257}, (), "mamba_ssm"),
        (("mamba_ssm", "fla"), {}, ("mamba_ssm",), "fla"),
        (SCAN_BACKENDS, {}, ("fla", "mamba_ssm"), "torch"),
        (SCAN_BACKENDS, {"dtype": "float32"}, (), "torch"),
        (("torch", "fla"), {}, (), "torch"),
        (("fla",), {"device": "cpu"}, ("fla",), "torch"),
        (("fla",), {"device": "meta", "dtype": "float64"}, (), "torch"),
    ],
)
def test_the_first_installed_backend_that_supports_the_case_is_selected(
    order: Sequence[ScanBackend],
    changes: dict[str, Any],
    missing: Sequence[ScanBackend],
    expected: str,
) -> None:
    assert select_scan(KEY, order, CASE._replace(**changes), missing) == expected


@pytest.mark.parametrize(
    ("changes", "missing", "message"),
    [
        (
            {"dtype": "float32"},
            (),
            r"a\.scan_backends: \[fla, mamba_ssm\] has no kernel for float32 Mamba2, "
            r"keys of 128, on cuda\n  add torch$",
        ),
        (
            {},
            ("fla", "mamba_ssm"),
            r"\[fla, mamba_ssm\]: not installed here: fla, mamba_ssm\n  install "
            r"flash-linear-attention or mamba-ssm, or add torch$",
        ),
        (
            {"mixer": "KimiDelta"},
            ("fla",),
            r": not installed here: fla\n  install flash-linear-attention, or add torch$",
        ),
    ],
)
def test_an_order_without_a_usable_kernel_is_refused(changes, missing, message):
    with pytest.raises(RecipeError, match=message):
        select_scan(KEY, ("fla", "mamba_ssm"), CASE._replace(**changes), missing)
