"""LightGBM models from text that nobody vouches for: validated whole before the library reads any of it.

LightGBM trusts its text format: an index out of range, a loop of nodes or a wrong size ends the process. So the text
is parsed here, every index is checked, and LightGBM gets a text written anew from what was checked.
"""

import re
from typing import TYPE_CHECKING

import numpy as np

from tidegrid.errors import InputError

if TYPE_CHECKING:
    from lightgbm import Booster

MOST_BYTES = 64 << 20
MOST_TREES = 20_000
MOST_LEAVES = 1 << 16
MOST_FEATURES = 10_000

OBJECTIVES = (
    "regression",
    "regression_l1",
    "fair",
    "huber",
    "quantile",
    "mape",
    "poisson",
    "gamma",
    "tweedie",
)
"""Objectives with one output a row."""

_HEADER = ("max_feature_idx", "objective", "feature_names", "feature_infos")
_NODES = ("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child")
_NODE_STATISTICS = ("internal_value", "internal_weight", "internal_count")
_LEAF_STATISTICS = ("leaf_weight", "leaf_count")
_NAME = re.compile(r"[^\s=:\[\]{}\",]{1,80}")
_RANGE = re.compile(r"none|\[[-+.\deE]+:[-+.\deE]+\]|-?\d+(:-?\d+)*")
_OBJECTIVE = re.compile(r"([a-z_0-9]+)((?: [a-z_]+:[-+.\deE]+)*)")


def booster_of(text: str, features: int | None = None) -> "Booster":
    """Return the booster of a model in LightGBM's text format.

    Parameters
    ----------
    text
        The model; parameters and importances in it are ignored.
    features
        How many features the model must have; None for any number.

    Raises
    ------
    InputError
        The text is not a sound model of one output; the tree and the field are named.
    """
    from lightgbm import Booster

    return Booster(model_str=sound_text(text, features))


def sound_text(text: str, features: int | None = None) -> str:
    """Return the model's text written anew from what was validated; see :func:`booster_of`."""
    if len(text) > MOST_BYTES:
        raise _refusal(f"has {len(text):,} characters, more than {MOST_BYTES:,}")
    head, *rest = re.split(r"^Tree=", text.partition("\nend of trees")[0], flags=re.MULTILINE)
    if "\nend of trees" not in text:
        raise _refusal("is cut short: it has no line 'end of trees'")
    if len(rest) > MOST_TREES:
        raise _refusal(f"has {len(rest):,} trees, more than {MOST_TREES:,}")
    fields = _fields(head, "header")
    number = _integers(fields, "max_feature_idx", 1, "header")[0] + 1
    if not 1 <= number <= MOST_FEATURES:
        raise _refusal(f"max_feature_idx is {number - 1}", "header")
    if features is not None and number != features:
        raise _refusal(f"has {number} features where {features} are known", "header")
    for name in ("num_class", "num_tree_per_iteration"):
        if fields.get(name, "1") != "1":
            raise _refusal(f"{name} is {fields[name][:20]!r}; one output a row is read", "header")
    found = _OBJECTIVE.fullmatch(fields.get("objective", ""))
    if found is None or found[1] not in OBJECTIVES:
        raise _refusal(f"objective is {fields.get('objective', '')[:40]!r}", "header")
    _tokens(fields, "feature_names", number, _NAME, "header")
    _tokens(fields, "feature_infos", number, _RANGE, "header")
    out = ["tree", "version=v4", "num_class=1", "num_tree_per_iteration=1", "label_index=0"]
    out += [f"{name}={fields[name]}" for name in _HEADER]
    out.append("")
    for k, part in enumerate(rest):
        out += [f"Tree={k}", *_tree(part, k, number), "", ""]
    return "\n".join([*out, "end of trees", ""])


def _tree(part: str, k: int, features: int) -> list[str]:
    where = f"tree {k}"
    label, _, body = part.partition("\n")
    if label.strip() != str(k):
        raise _refusal(f"is numbered {label.strip()[:20]!r}", where)
    fields = _fields(body, where)
    leaves = _integers(fields, "num_leaves", 1, where)[0]
    if not 1 <= leaves <= MOST_LEAVES:
        raise _refusal(f"num_leaves is {leaves}", where)
    if fields.get("is_linear", "0") != "0":
        raise _refusal("is linear; constant leaves are read", where)
    _finite(fields, "leaf_value", leaves, where)
    _finite(fields, "shrinkage", 1, where)
    kept = {"num_leaves": fields["num_leaves"], "num_cat": "0"}
    if leaves > 1:
        kept |= _splits(fields, leaves, features, where)
        for names, count in ((_NODE_STATISTICS, leaves - 1), (_LEAF_STATISTICS, leaves)):
            for name in names:
                if name in fields:
                    _finite(fields, name, count, where)
                    kept[name] = fields[name]
    kept |= {"leaf_value": fields["leaf_value"], "is_linear": "0", "shrinkage": fields["shrinkage"]}
    return [f"{name}={value}" for name, value in kept.items()]


def _splits(fields: dict[str, str], leaves: int, features: int, where: str) -> dict[str, str]:
    nodes = leaves - 1
    feature = _integers(fields, "split_feature", nodes, where)
    if feature.min() < 0 or feature.max() >= features:
        raise _refusal(f"split_feature names a feature outside 0 to {features - 1}", where)
    _finite(fields, "split_gain", nodes, where)
    threshold = _finite(fields, "threshold", nodes, where)
    kind = _integers(fields, "decision_type", nodes, where)
    # bit 0: categorical, bit 1: missing goes left, bits 2 and 3: how missing values look (0, 1, 2)
    if kind.min() < 0 or (kind >> 2).max() > 2:
        raise _refusal("decision_type is out of range", where)
    _children(fields, nodes, where)
    kept = {name: fields[name] for name in _NODES}
    categories = _integers(fields, "num_cat", 1, where)[0]
    categorical = threshold[(kind & 1) == 1]
    if not 0 <= categories <= nodes or categories != len(categorical):
        raise _refusal(f"num_cat is {categories} where {len(categorical)} splits are categorical", where)
    if categories:
        if sorted(categorical.tolist()) != list(range(categories)):
            raise _refusal("a categorical threshold does not name one of its sets", where)
        bounds = _integers(fields, "cat_boundaries", categories + 1, where)
        if bounds[0] != 0 or (np.diff(bounds) < 1).any() or bounds[-1] > MOST_LEAVES:
            raise _refusal("cat_boundaries do not increase from 0", where)
        words = _integers(fields, "cat_threshold", int(bounds[-1]), where)
        if words.min() < 0 or words.max() >= 1 << 32:
            raise _refusal("cat_threshold is out of range", where)
        kept |= {"cat_boundaries": fields["cat_boundaries"], "cat_threshold": fields["cat_threshold"]}
    return {**kept, "num_cat": str(categories)}


def _children(fields: dict[str, str], nodes: int, where: str) -> None:
    """Check that the nodes are one tree: every node but the first, and every leaf, is one child."""
    both = np.stack([_integers(fields, side, nodes, where) for side in ("left_child", "right_child")])
    # ~leaf is how a leaf is written; a split's number is larger than its parent's
    inner = both >= 0
    if (both <= np.arange(nodes))[inner].any():
        raise _refusal("a child comes before its parent: the nodes form a loop", where)
    numbered = np.sort(both.ravel())
    if numbered.tolist() != [*range(-nodes - 1, 0), *range(1, nodes)]:
        raise _refusal("a node or leaf is missing, out of range, or the child of two", where)


def _fields(text: str, where: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            if name in out:
                raise _refusal(f"{name[:40]!r} is there twice", where)
            out[name] = value.strip()
    return out


def _tokens(
    fields: dict[str, str], name: str, count: int, form: re.Pattern[str] | None, where: str
) -> list[str]:
    tokens = fields.get(name, "").split()
    if len(tokens) != count:
        raise _refusal(f"{name} has {len(tokens)} values where {count} belong", where)
    if form is not None and not all(form.fullmatch(token) for token in tokens):
        raise _refusal(f"{name} holds a value that does not belong there", where)
    return tokens


def _integers(fields: dict[str, str], name: str, count: int, where: str) -> np.ndarray:
    tokens = _tokens(fields, name, count, re.compile(r"-?\d{1,15}"), where)
    return np.array([int(token) for token in tokens], np.int64)


def _finite(fields: dict[str, str], name: str, count: int, where: str) -> np.ndarray:
    tokens = _tokens(fields, name, count, re.compile(r"[-+.\deE]{1,40}"), where)
    try:
        values = np.array([float(token) for token in tokens])
    except ValueError:
        raise _refusal(f"{name} holds a value that is not a number", where) from None
    if not np.isfinite(values).all():
        raise _refusal(f"{name} holds a value that is not finite", where)
    return values


def _refusal(problem: str, where: str = "") -> InputError:
    return InputError(
        problem, field=f"LightGBM model{', ' if where else ''}{where}", fix="use a version that verifies"
    )
