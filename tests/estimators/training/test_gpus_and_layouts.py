"""Names of GPU types and sharding texts are read however they are spelled."""

import pandas as pd
import pytest

from tidegrid.estimators import gpus
from tidegrid.estimators.training.layouts import layout


@pytest.mark.parametrize(
    ("spelled", "sheet"),
    [
        ("A100", "A100-SXM-80GB"), ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"), ("a100_pcie", "A100-PCIe-80GB"),
        ("h100", "H100-SXM-80GB"), ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"), ("H100 PCIe", "H100-PCIe-80GB"),
        ("H20", "H20-96GB"), ("H200", "H200-SXM-141GB"), ("H800", "H800-80GB"), ("Tesla T4", "T4"), ("t4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100-SXM-16GB"), ("RTX 4090", "RTX4090"), ("NVIDIA RTX A6000", "A6000"),
        ("RTX 6000 Ada", "RTX6000-Ada"), ("L4", "L4"), ("L40S", "L40S"), ("NVIDIA L40", "L40"), ("A10G", "A10G"),
        ("NVIDIA A10", "A10"), ("AMD Instinct MI300X", "MI300X"), ("MI250", "MI250X"), ("TPU v5e", "TPU-v5e"),
        ("TPU-trillium", "TPU-v6e"), ("GB200", "GB200"), ("B200", "B200-180GB"), ("B300-270GB", "B300-288GB"),
    ],
)  # fmt: skip
def test_a_gpu_is_found_however_it_is_spelled(spelled: str, sheet: str) -> None:
    found, known = gpus.find(spelled)
    assert (found.name, known) == (sheet, True)


@pytest.mark.parametrize("name", ["", "Cerebras WSE-3", "my gpu"])
def test_a_gpu_without_a_sheet_is_taken_for_an_a100_and_said_so(name: str) -> None:
    assert gpus.find(name) == (gpus.UNKNOWN, False)


def test_a_slice_has_the_share_of_its_profile() -> None:
    """Seven compute and eight memory slices; without the GPU's name the share is of a guess, and said so."""
    found, known = gpus.find("nvidia_a100-sxm4-40gb_3g.20gb")
    whole = gpus.BY_NAME["A100-SXM-40GB"]
    assert known and (found.memory_gib, found.node, found.arch) == (20, 1, whole.arch)
    assert found.tflops == pytest.approx(whole.tflops * 3 / 7)
    assert found.bandwidth_gb_s == pytest.approx(whole.bandwidth_gb_s / 2)
    bare, known = gpus.find("1g.5gb")
    assert not known and bare.memory_gib == 5 and bare.tflops < 50


def test_sheets_are_plausible() -> None:
    """Every sheet finds itself, says its source, and has figures of a real part."""
    for sheet in gpus.SHEETS:
        assert gpus.find(sheet.name) == (sheet, True)
        assert sheet.source
        assert (
            10 < sheet.tflops < 5000 and 8 <= sheet.memory_gib <= 300 and 200 < sheet.bandwidth_gb_s <= 8000
        )
        assert sheet.arch in gpus.ARCHS
        assert 0.5 <= (sheet.reach or gpus.estimated_reach(sheet.tflops, sheet.bandwidth_gb_s)) <= 1.0


@pytest.mark.realdata
def test_every_gpu_type_of_the_public_list_has_a_sheet(shared_data) -> None:  # type: ignore[no-untyped-def]
    """The figures agree with the list within 12 %, where both say them."""
    for row in pd.read_csv(shared_data / "timings" / "gpus.csv").itertuples():
        sheet, known = gpus.find(row.gpu_type)
        assert known, row.gpu_type
        peak = row.peak_bf16_dense_tflops if row.peak_bf16_dense_tflops > 0 else row.peak_fp16_dense_tflops
        assert sheet.tflops == pytest.approx(peak, rel=0.12), row.gpu_type
        assert sheet.memory_gib == pytest.approx(row.memory_gib, rel=0.12), row.gpu_type
        assert sheet.bandwidth_gb_s == pytest.approx(row.bandwidth_gb_s, rel=0.12), row.gpu_type


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TP2 DP4 PP8", {"tp": 2, "dp": 4, "pp": 8, "zero": 1}),
        ("TP1 (2) PP1 (4) CP1 VP1 (5) EP1 FSDP64 (0)", {"tp": 1, "pp": 1, "zero": 3}),
        ("TP2 PP4 CP1 VP5 EPn/a FSDP0", {"tp": 2, "pp": 4, "vp": 5, "zero": 1}),
        ("FULL_SHARD", {"zero": 3}), ("fsdp", {"zero": 3}), ("zero2", {"zero": 2}), ("ZeRO-3", {"zero": 3}),
        ("zero3_offload", {"zero": 3, "offload": True}), ("SHARD_GRAD_OP", {"zero": 2}), ("ddp", {"zero": 0}),
        ("", {"zero": -1, "tp": 0}), ("none", {"zero": -1}), ("TP0", {"tp": 0}),
    ],
)  # fmt: skip
def test_a_sharding_text_is_read(text: str, expected: dict[str, object]) -> None:
    read = layout(text)
    assert {key: getattr(read, key) for key in expected} == expected
