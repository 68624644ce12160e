"""The native core: what it is given is checked, and a kernel that is absent is said in one line."""

import subprocess
import sys

import numpy as np
import pytest

from tidegrid import native
from tidegrid.errors import TidegridError

repeat = native.function(
    "tg_seasonal_repeat", native.FLOATS, native.INTS, native.INT, native.FLOATS_OUT
)  # any kernel would do


def test_arrays_of_another_type_or_layout_are_refused_and_never_cast() -> None:
    x, ends, out = np.arange(10.0), np.array([10]), np.zeros((1, 4))
    repeat(x, ends, 3, out)
    assert out.tolist() == [[7.0, 8.0, 9.0, 7.0]]
    for bad in (x.astype(np.float32), x[::2], [1.0, 2.0]):
        with pytest.raises((TypeError, native.ctypes.ArgumentError)):
            repeat(bad, ends, 3, out)
    out.flags.writeable = False
    with pytest.raises(native.ctypes.ArgumentError, match="writeable"):
        repeat(x, ends, 3, out)


def test_sizes_that_do_not_fit_together_are_an_error() -> None:
    with pytest.raises(ValueError, match="tg_seasonal_repeat: the sizes"):
        repeat(np.arange(10.0), np.array([11]), 3, np.zeros((1, 4)))


def test_a_kernel_that_the_library_lacks_is_an_error_with_the_remedy() -> None:
    with pytest.raises(TidegridError, match=r"has no tg_absent: .* pip install -e"):
        native.function("tg_absent")


def test_a_missing_library_is_one_line_with_the_remedy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import tidegrid.native"],
        env={"TIDEGRID_NATIVE": "absent.so", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "TidegridError: the native library does not load" in done.stderr.splitlines()[-1]
    assert "pip install -e ." in done.stderr.splitlines()[-1]
