"""GSPO (Zheng et al. 2025, arXiv 2507.18071): GRPO with one importance ratio per sequence.

Differs from GRPO in: the level of the ratio and the clip range. With a single update per rollout
the ratio is 1 and the gradient is GRPO's; the published setting therefore takes four
(``model.updates_per_rollout: 4``), see configs/methods.
"""

from dataclasses import dataclass, field

from svr_lightning.core.losses import LossSpec
from svr_lightning.recipes.grpo import GRPO


def published_loss() -> LossSpec:
    """Sequence-level ratio, clipped to [1 - 3e-4, 1 + 4e-4], without a KL term."""
    return LossSpec(ratio="sequence", clip_eps=3e-4, clip_eps_high=4e-4, beta=0.0)


@dataclass(frozen=True, kw_only=True)
class GSPO(GRPO):
    """GRPO, but for the level of its ratio."""

    loss: LossSpec = field(default_factory=published_loss)
    """Ratio level, clip range and KL coefficient."""
