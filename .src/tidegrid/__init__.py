"""tidegrid forecasts what a GPU cluster will need, and fills the cluster with it.

What a notebook needs, each loaded when it is first used::

    import tidegrid as tg

    site = tg.Site.read("my-site")
    estimators = tg.fit_all(site.history, timezone=site.cluster.timezone)
    decision = tg.decide(site.state(), tg.Forecaster(estimators, site.history))
    decision.etas
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    "BatchInferenceEstimator": "estimators.batch_inference",
    "Cluster": "data",
    "Decision": "pipeline.decide",
    "Forecaster": "pipeline.forecast:Estimating",
    "History": "data",
    "InputError": "errors",
    "ModelStore": "models",
    "Plan": "scheduler",
    "Policy": "pipeline.policy",
    "Problem": "scheduler",
    "QuantizationEstimator": "estimators.quantization",
    "RealtimeEstimator": "estimators.realtime",
    "RecurringJobEstimator": "estimators.recurring",
    "Site": "pipeline.site",
    "State": "pipeline.state",
    "TrainingEstimator": "estimators.training",
    "Trace": "pipeline.worlds.trace",
    "check": "scheduler",
    "decide": "pipeline.decide",
    "explain": "scheduler",
    "fit_all": "pipeline.train",
    "forecast": "pipeline.forecast",
    "replay": "pipeline.replay",
    "solve": "scheduler",
    "synthesise": "data.synth",
}

__all__ = ["__version__", *_PLACES]

if TYPE_CHECKING:
    from tidegrid.data import Cluster, History
    from tidegrid.data.synth import synthesise
    from tidegrid.errors import InputError
    from tidegrid.estimators.batch_inference import BatchInferenceEstimator
    from tidegrid.estimators.quantization import QuantizationEstimator
    from tidegrid.estimators.realtime import RealtimeEstimator
    from tidegrid.estimators.recurring import RecurringJobEstimator
    from tidegrid.estimators.training import TrainingEstimator
    from tidegrid.models import ModelStore
    from tidegrid.pipeline.decide import Decision, decide
    from tidegrid.pipeline.forecast import Estimating as Forecaster
    from tidegrid.pipeline.forecast import forecast
    from tidegrid.pipeline.policy import Policy
    from tidegrid.pipeline.replay import replay
    from tidegrid.pipeline.site import Site
    from tidegrid.pipeline.state import State
    from tidegrid.pipeline.train import fit_all
    from tidegrid.pipeline.worlds.trace import Trace
    from tidegrid.scheduler import Plan, Problem, check
    from tidegrid.scheduler.explain import explain
    from tidegrid.scheduler.solve import solve


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'tidegrid' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(import_module(f"tidegrid.{module}"), attribute or name)


def __dir__() -> list[str]:
    return sorted(__all__)
