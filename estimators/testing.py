"""The public contract suite: every promise of an estimator, checked on made-up data of its own features.

Use it in a plugin's tests::

    from tidegrid.estimators.testing import check_estimator

    def test_it_keeps_the_contract():
        check_estimator(MyEstimator())

A failure says which promise was broken and how. ``parametrize_with_checks`` makes one test case a promise instead, as
scikit-learn's function of that name does::

    from tidegrid.estimators.testing import parametrize_with_checks

    @parametrize_with_checks([MyEstimator()])
    def test_contract(estimator, check):
        check(estimator)
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidegrid.errors import TidegridError
from tidegrid.estimators import contract, contract_inputs, contract_outputs
from tidegrid.estimators.base import Estimator
from tidegrid.estimators.contract import Subject


class ContractError(TidegridError, AssertionError):
    """An estimator broke a promise of the contract.

    Parameters
    ----------
    estimator
        The estimator's name.
    promise
        The promise, as one line.
    detail
        What happened instead.
    """

    def __init__(self, estimator: str, promise: str, detail: str) -> None:
        self.estimator = estimator
        self.promise = promise
        self.detail = detail
        super().__init__(f"{estimator} breaks the promise: {promise}; {detail}")


@dataclass(frozen=True)
class Outcome:
    """What became of one promise: ``detail`` is empty where it was kept."""

    promise: str
    detail: str = ""

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        return not self.detail


CHECKS = contract_outputs.CHECKS + contract_inputs.CHECKS


def promises() -> list[str]:
    """Return the promises that are checked, in order."""
    return [promise for promise, _ in CHECKS]


def run_checks(estimator: Estimator | type[Estimator], *, seed: int = 0) -> list[Outcome]:
    """Check every promise and return what became of each; nothing is raised for a broken one.

    Promises that rest on a fitted estimator are reported broken when fitting itself fails.
    """
    subject = _subject(estimator, seed)
    return [Outcome(promise, _broken(check, subject)) for promise, check in CHECKS]


def check_estimator(estimator: Estimator | type[Estimator], *, seed: int = 0) -> None:
    """Check that an estimator keeps every promise of the contract.

    Parameters
    ----------
    estimator
        An instance (it is cloned, never fitted itself) or a class that can be made without arguments.
    seed
        The seed of the made-up data.

    Raises
    ------
    ContractError
        The first broken promise, and how it was broken.
    """
    subject = _subject(estimator, seed)
    for promise, check in CHECKS:
        detail = _broken(check, subject)
        if detail:
            raise ContractError(subject.name, promise, detail)


def parametrize_with_checks(estimators: Sequence[Estimator | type[Estimator]], *, seed: int = 0) -> Any:
    """Return a pytest decorator that runs a test once for each estimator and promise.

    The test takes ``estimator`` and ``check``, and calls ``check(estimator)``, which raises :class:`ContractError`
    where the promise is broken. Needs pytest.
    """
    import pytest

    cases = []
    for estimator in estimators:
        # one subject an estimator: its fits are shared by the checks, and made when the first one needs them
        shared: dict[str, Subject] = {}

        def case(
            given: Estimator | type[Estimator],
            promise: str,
            check: Callable[[Subject], None],
            shared: dict[str, Subject] = shared,
        ) -> None:
            subject = shared.setdefault("subject", _subject(given, seed))
            if detail := _broken(check, subject):
                raise ContractError(subject.name, promise, detail)

        name = str(getattr(estimator, "name", estimator))
        for promise, check in CHECKS:
            run = partial(case, promise=promise, check=check)
            cases.append(pytest.param(estimator, run, id=f"{name}: {promise}"))
    return pytest.mark.parametrize(("estimator", "check"), cases)


def _subject(estimator: Estimator | type[Estimator], seed: int) -> Subject:
    made: Any = estimator
    if inspect.isclass(estimator):
        name = str(getattr(estimator, "name", estimator.__name__))
        try:
            made = estimator()
        except TypeError as error:
            raise ContractError(name, "it can be made without arguments", str(error)) from None
    name = str(getattr(made, "name", type(made).__name__))
    if not isinstance(made, Estimator):
        raise ContractError(
            name, "it is a tidegrid.estimators.Estimator", f"it is a {type(made).__name__}; inherit from it"
        )
    return Subject(made, name, seed)


def _broken(check: Callable[[Subject], None], subject: Subject) -> str:
    try:
        check(subject)
    except contract.Broken as broken:
        return str(broken)
    except Exception as error:
        # any other exception is a broken promise too: the contract knows InputError and NotFittedError only
        return f"{type(error).__name__}: {error}"
    return ""
