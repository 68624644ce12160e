"""Learned residual: LightGBM on log(actual / prior), shrunk towards the prior far from what was seen.

It reads ratios and sizes, never the amount of work: more tokens can only take longer, because the prior is linear in
them and no learned part knows them.
"""

import re
from dataclasses import dataclass

import numpy as np

from tidegrid.estimators.training.features import Runs
from tidegrid.estimators.training.physics import Terms

NAMES = (
    "params", "active share", "micro-batch tokens", "sequence", "GPUs", "tensor parallel", "pipeline stages",
    "micro-batches", "sharded", "LoRA", "quantized", "checkpointing", "narrow precision", "GPU speed", "packing",
    "generation", "preference pairs", "launches to arithmetic", "width", "layers", "expert parallel", "weight bits",
    "filled share",
)  # fmt: skip
"""The scaled features, in order."""

ENOUGH = 200
"""Rows below which there is no learned residual, only the site's offsets."""

REACH_SEEN, REACH_UNSEEN = 3.0, 1.0
"""Distance in scaled features at which the residual has faded to 1/e: in a stack that was seen, and elsewhere."""

LANDMARKS = 320
"""Rows kept to measure the distance to what was seen."""


def scaled(r: Runs, t: Terms) -> np.ndarray:
    """Return the scaled features of the runs, shape (rows, len(NAMES)); one unit is a difference that matters."""

    def log(values: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(values, 1e-12))

    count = np.maximum(1.0, r.batch / (r.dp * r.micro))
    return np.column_stack([
        log(r.params) / 1.5, log(r.active / r.params) / 0.7, log(r.micro * r.mean_seq / r.cp) / 1.2, log(r.seq) / 1.2,
        log(r.gpus) / 1.5, log(r.tp) / 0.7, log(r.pp) / 0.8, log(count) / 1.2, r.zero >= 3, r.lora, r.qlora,
        np.nan_to_num(r.checkpointing, nan=0.4), np.nan_to_num(r.narrow, nan=0.5) * 0.7, log(r.peak) / 0.6, r.packing,
        r.rl * 2.0, r.dpo, log(t.launch_ratio) / 1.5, log(r.hidden) / 0.6,
        log(r.layers) / 0.6, log(r.ep), (r.weight_bits < 16) * 0.5, log(r.mean_seq / r.seq),
    ]).astype(float)  # fmt: skip


@dataclass
class Residual:
    """A fitted residual.

    Parameters
    ----------
    text
        LightGBM's own text format.
    landmarks : ndarray of shape (landmarks, features)
        Rows that were seen, for the distance.
    stacks : ndarray of shape (stacks,)
        Stacks that were seen.
    """

    text: str
    landmarks: np.ndarray
    stacks: np.ndarray

    def __post_init__(self) -> None:
        from lightgbm import Booster

        self._booster = Booster(model_str=self.text)
        self._points = self.landmarks.T.astype(np.float32)
        self._squares = (self._points**2).sum(axis=0)

    def predict(self, x: np.ndarray, stack: np.ndarray) -> np.ndarray:
        """Return the shrunken log residual, shape (rows,)."""
        if len(x) == 0:
            return np.zeros(0)
        raw = np.asarray(self._booster.predict(x, num_threads=1), dtype=float)
        return raw * self.trust(x, stack)

    def trust(self, x: np.ndarray, stack: np.ndarray) -> np.ndarray:
        """Return the share of the residual that is believed: 1 where rows were seen, 0 far away."""
        # single precision is enough for a distance that only fades a correction
        nearest = (self._squares[None, :] - 2.0 * (x.astype(np.float32) @ self._points)).min(axis=1)
        square = (x**2).sum(axis=1) + nearest
        reach = np.where(np.isin(stack, self.stacks), REACH_SEEN, REACH_UNSEEN)
        return np.asarray(np.exp(-np.maximum(square, 0.0) / reach**2))

    def importances(self) -> dict[str, float]:
        """Return each feature's share of the gain, largest first."""
        gain = np.asarray(self._booster.feature_importance("gain"), dtype=float)
        share = gain / max(gain.sum(), 1e-12)
        return {NAMES[i]: float(share[i]) for i in np.argsort(-share, kind="stable") if share[i] > 0}

    def contributions(self, x: np.ndarray) -> np.ndarray:
        """Return TreeSHAP contributions to the raw log residual, shape (rows, features)."""
        return np.asarray(self._booster.predict(x, pred_contrib=True, num_threads=1), dtype=float)[:, :-1]


def _train(x: np.ndarray, z: np.ndarray, seed: int) -> str:
    import lightgbm as lgb

    rows = len(z)
    params = {
        "objective": "l1", "learning_rate": 0.1, "num_leaves": 15 if rows < 5000 else 31, "min_data_in_leaf":
        max(5, min(40, rows // 100)), "lambda_l2": 1.0, "bagging_fraction": 0.8, "bagging_freq": 1, "seed": seed,
        "deterministic": True, "force_row_wise": True, "num_threads": 1, "verbosity": -1,
    }  # fmt: skip
    booster = lgb.train(params, lgb.Dataset(x, z, free_raw_data=True), num_boost_round=120)
    # the parameters carry nothing the prediction needs, and a file location would differ between machines
    return re.sub(r"\nparameters:.*?end of parameters\n", "\n", booster.model_to_string(), flags=re.S)


def fit_residual(
    x: np.ndarray, z: np.ndarray, stack: np.ndarray, fold: np.ndarray, seed: int
) -> tuple[Residual, np.ndarray]:
    """Fit the residual, and predict every row from models that never saw it.

    Parameters
    ----------
    x : ndarray of shape (rows, features)
        Scaled features.
    z : ndarray of shape (rows,)
        Log(actual / prior).
    stack
        The stack of each row.
    fold : ndarray of int
        The fold of each row.
    seed
        Seed of the bagging.

    Returns
    -------
    tuple of (Residual, ndarray)
        The residual, and the shrunken out-of-fold predictions, shape (rows,).
    """
    clipped = np.clip(z, *np.quantile(z, [0.005, 0.995]))
    outside = np.zeros(len(z))
    for k in np.unique(fold):
        rows = fold != k
        part = Residual(_train(x[rows], clipped[rows], seed), _landmarks(x[rows]), np.unique(stack[rows]))
        outside[~rows] = part.predict(x[~rows], stack[~rows])
    return Residual(_train(x, clipped, seed), _landmarks(x), np.unique(stack)), outside


def _landmarks(x: np.ndarray) -> np.ndarray:
    unique = np.unique(np.round(x, 3), axis=0)
    if len(unique) <= LANDMARKS:
        return unique
    return unique[np.linspace(0, len(unique) - 1, LANDMARKS).round().astype(int)]
