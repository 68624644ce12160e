"""Shapes of decoder models from their parameters, where nobody says layers and width."""

import numpy as np

# L of published decoder models by parameters (GPT-3 paper table 2.1; Llama 2 and 3 model cards)
_SIZES_B = np.log([0.125, 0.35, 0.76, 1.3, 2.7, 6.7, 13.0, 30.0, 66.0, 175.0, 540.0])
_LAYERS = np.log([12.0, 24.0, 24.0, 24.0, 32.0, 32.0, 40.0, 48.0, 80.0, 96.0, 118.0])


def shape_of(params: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return layers and width from parameters, for models that do not say.

    Dense decoders follow N = 12·L·h² (Kaplan et al. 2020) with L from published models of that size; a mixture of
    experts has the depth between those of its active and its whole size, and the width of its active part. Depths are
    not rounded, so that nothing jumps from one size to the next. Depths are
    not rounded, so that nothing jumps from one size to the next.
    """
    whole = np.exp(np.interp(np.log(params / 1e9), _SIZES_B, _LAYERS))
    part = np.exp(np.interp(np.log(active / 1e9), _SIZES_B, _LAYERS))
    depth = np.sqrt(whole * part)
    return depth, np.sqrt(active / (12.0 * depth))
