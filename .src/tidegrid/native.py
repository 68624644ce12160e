"""The native core: the compiled kernels of all rooms, one shared library, called through ctypes.

A call releases the GIL. Kernels are plain C functions (``native.hpp``); arrays go as (address, size) pairs, so that
a kernel always knows how long they are.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidegrid.errors import TidegridError

NAME = "_native" + {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")


def _load() -> ctypes.CDLL:
    # the checked build of `make sanitize` is loaded by its path
    path = os.environ.get("TIDEGRID_NATIVE") or str(Path(__file__).with_name(NAME))
    try:
        return ctypes.CDLL(path)
    except OSError as fault:
        raise TidegridError(
            f"the native library does not load ({fault}); build it: pip install -e . (or make install)"
        ) from None


_LIBRARY = _load()


class _View(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_int64))


class Array:
    """Argument type: a C-contiguous array of one dtype, passed as ``tidegrid::Array<T>`` by value.

    Parameters
    ----------
    dtype : dtype
        What the array must hold; another is an error, never a cast.
    writes : bool
        Whether the kernel writes into it, so that it must be writeable.
    """

    def __init__(self, dtype: Any, writes: bool = False) -> None:
        self.dtype = np.dtype(dtype)
        self.writes = writes

    def from_param(self, value: np.ndarray) -> _View:
        """Check one argument and return its view; raise TypeError where it does not fit."""
        flags = value.flags
        if value.dtype != self.dtype or not flags.c_contiguous or (self.writes and not flags.writeable):
            raise TypeError(
                f"a kernel needs a contiguous{' writeable' * self.writes} array of {self.dtype}, not {value.dtype}"
                f" with strides {value.strides}"
            )
        return _View(value.ctypes.data, value.size)


FLOATS = Array(np.float64)
FLOATS_OUT = Array(np.float64, writes=True)
INTS = Array(np.int64)
INTS_OUT = Array(np.int64, writes=True)
FLAGS = Array(np.bool_)
INT = ctypes.c_int64
FLOAT = ctypes.c_double
FLAG = ctypes.c_bool
POINTER = ctypes.c_void_p


def _fits(answer: bool, kernel: Any, arguments: tuple) -> None:
    if not answer:
        raise ValueError(f"{kernel.__name__}: the sizes of its arguments do not fit together")


def function(name: str, *arguments: Any, returns: Any = None) -> Callable[..., Any]:
    """Return the kernel ``name`` with its argument types set.

    Parameters
    ----------
    name : str
        As in its ``extern "C"`` declaration.
    *arguments : type
        One for each parameter: an `Array`, INT, FLOAT, FLAG, or POINTER (a raw address, from `address` or
        ``ctypes.byref`` of a plain structure, for calls that must be cheap).
    returns : type, optional
        INT or FLOAT. By default the kernel returns ``bool``: whether the sizes and values of its arguments fit
        together; the call raises ValueError where they do not, and returns nothing.

    Raises
    ------
    TidegridError
        Where the library lacks it: it was built from older sources.
    """
    try:
        kernel = getattr(_LIBRARY, name)
    except AttributeError:
        raise TidegridError(
            f"the native library has no {name}: it is older than its sources; build it: pip install -e ."
        ) from None
    kernel.argtypes = list(arguments)
    kernel.restype = returns or FLAG
    if returns is None:
        kernel.errcheck = _fits
    return kernel


def address(array: np.ndarray, dtype: Any) -> int:
    """Return where a contiguous writeable array of ``dtype`` lies; the caller keeps the array alive."""
    return int(Array(dtype, writes=True).from_param(array).data)
