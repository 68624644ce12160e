"""The ten training variants: full or LoRA, times the technique, each with its compute model.

Costs are counted in forward passes of the trained model over every token (one forward pass is 2·N FLOP a token;
Kaplan et al. 2020, arXiv:2001.08361, section 2.1):

- a full backward pass costs two forward passes; with frozen weights only activation gradients flow, one pass
  (Hu et al. 2021, arXiv:2106.09685: no gradients for most parameters);
- recomputed activations cost one more forward pass (Korthikanti et al. 2022, arXiv:2205.05198);
- DPO runs a frozen reference model forward on both answers (Rafailov et al. 2023, arXiv:2305.18290);
- RLHF (PPO; Ouyang et al. 2022, arXiv:2203.02155) generates, scores with reference, reward and critic, recomputes the
  actor's log-probabilities, then trains actor and critic;
- RLVR (GRPO; Shao et al. 2024, arXiv:2402.03300) generates, recomputes log-probabilities, runs the reference model,
  then trains the actor; the verifier runs on CPUs.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """The compute model of one variant.

    Parameters
    ----------
    name
        The variant, ``<strategy>_<technique>``.
    lora
        Whether only adapters are trained.
    technique
        ``sft``, ``dpo``, ``rlhf``, ``rlvr`` or ``cpt``.
    backward
        Cost of a backward pass, in forward passes.
    policy_forward
        Further forward passes of the trained model (old log-probabilities in reinforcement learning).
    aux_forward
        Forward passes of the auxiliary models (their parameters together are ``aux_params_b``).
    aux_trained
        The share of the auxiliary parameters that is trained as well (PPO's critic).
    aux_default
        Auxiliary parameters in units of the model's own, where ``aux_params_b`` is not given.
    generates
        Whether the run generates text.
    generated_share
        The share of a sequence that is generated, where ``rollout_tokens`` is not given.
    fill
        Mean over longest length of a sample, where the mean is not known (published: 0.1 to 0.65).
    """

    name: str
    lora: bool
    technique: str
    backward: float
    policy_forward: float = 0.0
    aux_forward: float = 0.0
    aux_trained: float = 0.0
    aux_default: float = 0.0
    generates: bool = False
    generated_share: float = 0.0
    fill: float = 0.3

    @property
    def rl(self) -> bool:
        """Whether it is reinforcement learning with generation."""
        return self.generates


def _make(strategy: str, technique: str) -> Variant:
    lora = strategy == "lora"
    name, backward = f"{strategy}_{technique}", 1.0 if lora else 2.0
    if technique == "dpo":
        # with adapters off, the frozen base is its own reference: no further parameters, the same passes
        return Variant(name, lora, technique, backward, aux_forward=1.0, aux_default=1.0)
    if technique == "rlhf":
        return Variant(
            name, lora, technique, backward, policy_forward=1.0, aux_forward=1.0, aux_trained=1 / 3,
            aux_default=3.0, generates=True, generated_share=0.5, fill=1.0,
        )  # fmt: skip
    if technique == "rlvr":
        return Variant(
            name, lora, technique, backward, policy_forward=1.0, aux_forward=1.0, aux_default=1.0,
            generates=True, generated_share=0.85,
        )  # fmt: skip
    return Variant(name, lora, technique, backward)


STRATEGIES = ("full", "lora")
TECHNIQUES = ("sft", "dpo", "rlhf", "rlvr", "cpt")
VARIANTS: tuple[Variant, ...] = tuple(_make(s, t) for s in STRATEGIES for t in TECHNIQUES)
BY_NAME = {variant.name: variant for variant in VARIANTS}
NAMES = tuple(BY_NAME)


@dataclass(frozen=True)
class Adapter:
    """What a kind of adapter costs beside the frozen model's own passes.

    Parameters
    ----------
    launches
        Kernel launches of a layer and pass beyond the frozen layer's own, relative to those.
    passes
        Times that a pass forms or rotates a whole weight matrix (16 bytes of memory traffic a parameter).
    virtual
        Whether it puts virtual tokens before each sample (``trainable_params_b`` / width of them, else 20).
    """

    launches: float
    passes: float = 0.0
    virtual: bool = False


ADAPTERS = {
    "lora": Adapter(0.5),
    "light": Adapter(0.2),
    "prompt": Adapter(0.2, virtual=True),
    "orthogonal": Adapter(0.7, 0.25),
    "weights": Adapter(0.7, 1.0),
    "butterfly": Adapter(2.0, 6.0),
}
"""Families of adapters: low rank (Hu et al. 2021); scales, biases and prefixes (IA3, Liu et al. 2022; prefix tuning, Li
and Liang 2021); virtual tokens (Lester et al. 2021); block rotations (OFT, Qiu et al. 2023); updates that are formed as
whole matrices (DoRA, LoHa, LoKr, Fourier and wavelet adapters); several rotations in turn (BOFT, Liu et al. 2023)."""

_FAMILY_OF = (
    (r"boft", "butterfly"),
    (r"prompttuning|^prompt$|softprompt", "prompt"),
    (r"oft|orthogonal|householder|psoft|hra$", "orthogonal"),
    (r"dora|loha|lokr|hira|fourier|wave|randlora|vblora|osf|sparse", "weights"),
    (r"ia3|prefix|ptuning|bitfit|^ln$|lntuning|layernorm|trainabletokens|adaptionprompt|adapter", "light"),
)


def adapter(name: str) -> Adapter:
    """Return the costs of a kind of adapter, however its name is spelled; an unknown one costs what LoRA costs."""
    squeezed = re.sub(r"[^a-z0-9]", "", name.lower())
    for pattern, family in _FAMILY_OF:
        if squeezed and re.search(pattern, squeezed):
            return ADAPTERS[family]
    return ADAPTERS["lora"]
