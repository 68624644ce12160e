"""A bundle becomes bytes and comes back the same; nothing else passes."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tidegrid.errors import InputError
from tidegrid.models import Bundle
from tidegrid.models.codec import SAFE_FILE, decode, digest, encode

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
ARRAYS = npst.arrays(
    dtype=st.sampled_from(["f8", "f4", "i8", "u1", "?", "U3"]),
    shape=npst.array_shapes(min_dims=0, max_dims=3, min_side=0),
)
KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
BUNDLES = st.builds(
    Bundle,
    st.just("example"),
    st.dictionaries(TEXT, JSON, max_size=3),
    st.dictionaries(TEXT, JSON, max_size=3),
    st.dictionaries(KEYS, ARRAYS, max_size=3),
    st.dictionaries(KEYS, TEXT, max_size=3),
)


@given(BUNDLES)
def test_a_bundle_comes_back_as_it_was(bundle: Bundle) -> None:
    files = encode(bundle)
    back = decode(files)
    assert back.estimator == bundle.estimator
    assert back.params == bundle.params and back.state == bundle.state and back.texts == bundle.texts
    assert set(back.arrays) == set(bundle.arrays)
    for name, array in bundle.arrays.items():
        assert back.arrays[name].dtype == array.dtype and back.arrays[name].shape == array.shape
        assert back.arrays[name].tobytes() == array.tobytes()
    assert encode(back) == files and digest(back) == digest(bundle)
    assert all(SAFE_FILE.fullmatch(name) for name in files)


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"n": np.int64(3)}, "state.n"),
        ({"a": {"b": [1.0, float("nan")]}}, r"state.a.b\[1\]"),
        ({"a": {1: 2}}, "state.a has the key 1"),
        ({"s": {1, 2}}, "state.s"),
        ({"f": len}, "state.f"),
    ],
)
def test_what_json_would_change_is_refused_by_its_path(state: dict, path: str) -> None:
    with pytest.raises(TypeError, match=path):
        encode(Bundle("example", {}, state))


def test_arrays_of_python_objects_are_refused() -> None:
    """They would need pickle."""
    with pytest.raises(TypeError, match="Python objects"):
        Bundle("example", arrays={"a": np.array([{}], dtype=object)})
    mixed = np.zeros(2, dtype=[("x", "f8"), ("y", "O")])
    with pytest.raises(TypeError, match="Python objects"):
        encode(Bundle("example", arrays={"a": mixed}))


def test_a_pickle_inside_an_array_file_is_refused() -> None:
    """A stranger's file never runs code: numpy's own pickled arrays do not load."""
    import io

    out = io.BytesIO()
    np.savez(out, a=np.array([print], dtype=object))
    files = {**encode(Bundle("example")), "arrays.npz": out.getvalue()}
    with pytest.raises(InputError, match="is not a bundle"):
        decode(files)


@given(st.binary(max_size=200))
def test_junk_is_refused_in_one_line(junk: bytes) -> None:
    for name in ("bundle.json", "arrays.npz"):
        with pytest.raises(InputError) as caught:
            decode({**encode(Bundle("example")), name: junk})
        assert "\n" not in str(caught.value)


def _npz(header: dict[str, object], body: bytes, compress: int = zipfile.ZIP_DEFLATED) -> bytes:
    out, stream = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, header)
    with zipfile.ZipFile(out, "w", compress) as archive:
        archive.writestr("a.npy", stream.getvalue() + body)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        _npz({"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)}, b""),
        _npz({"descr": "<f8", "fortran_order": False, "shape": (3,)}, b"\0" * 16),
        _npz({"descr": "<f8", "fortran_order": False, "shape": (2,)}, b"\0" * 17),
        _npz({"descr": "|O", "fortran_order": False, "shape": (1,)}, b"\0" * 8),
        b"PK\x05\x06" + b"\0" * 17,
        b"",
    ],
)
def test_arrays_that_are_not_what_their_header_states_are_refused(data: bytes) -> None:
    files = {**encode(Bundle("example")), "arrays.npz": data}
    with pytest.raises(InputError, match="is not a bundle"):
        decode(files)


def test_arrays_that_unpack_to_more_than_the_budget_are_refused_before_they_are_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegrid.models.codec.MOST_BYTES", 1 << 20)
    packed = _npz({"descr": "|u1", "fortran_order": False, "shape": (1 << 21,)}, b"\0" * (1 << 21))
    assert len(packed) < 1 << 14
    with pytest.raises(InputError, match="more than 1 MiB"):
        decode({**encode(Bundle("example")), "arrays.npz": packed})
