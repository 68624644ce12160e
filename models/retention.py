"""How many versions are kept: the rule that bounds the disk."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidegrid.models.journal import Entry


@dataclass(frozen=True)
class Retention:
    """Which versions are kept beside the champion and the present challenger, which always are.

    Parameters
    ----------
    ancestors
        How many earlier champions, the latest first: how far rollback can go.
    challengers
        How many other versions, the latest first.
    max_bytes
        The bytes of one estimator above which the oldest of the others, then of the ancestors, go too.
    """

    ancestors: int = 3
    challengers: int = 3
    max_bytes: int | None = None


def kept(rule: Retention, now: Entry, sizes: Mapping[str, int]) -> tuple[set[str], tuple[str, ...]]:
    """Return the versions that the rule keeps, and the ancestors among them.

    Parameters
    ----------
    rule
        The rule.
    now
        The aliases.
    sizes
        Bytes of each version, the oldest first.
    """
    fixed = {version for version in (now.champion, now.challenger) if version is not None}
    earlier = (
        [version for version in now.ancestors if version in sizes][-rule.ancestors :]
        if rule.ancestors
        else []
    )
    others = [v for v in sizes if v not in fixed and v not in now.ancestors]
    others = others[-rule.challengers :] if rule.challengers else []
    # whichever goes first when space is short stands first
    optional = others + [version for version in earlier if version not in fixed]
    if rule.max_bytes is not None:
        total = sum(sizes.get(version, 0) for version in fixed) + sum(sizes[version] for version in optional)
        while optional and total > rule.max_bytes:
            total -= sizes[optional.pop(0)]
    stay = fixed | set(optional)
    return stay, tuple(version for version in now.ancestors if version in stay)
