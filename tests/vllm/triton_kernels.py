"""vLLM's kernels for CUDA that draw tokens and score them, in Triton's interpreter.

``TRITON_INTERPRET=1 python -m tests.vllm.triton_kernels OUT`` leaves what they compute from fixed
inputs.
"""

import os
import sys

import torch

TEMPERATURE = 0.9
VOCABULARY = 2500
"""More than two of the blocks that a kernel reads at a time."""
SEEDS = (5, 5 + 2**32, 2**63 - 1, 5)
"""Of the rows; the second differs from the first in its upper half only."""
FEW = 3
"""Tokens that the draws are counted of."""
DRAWS = 400
POSITIONS = 4

if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # vLLM then expects no Triton driver
    import vllm.platforms as platforms

    assert platforms.current_platform.is_cpu()
    platforms.vllm_version_matches_substr = lambda _: False  # or it would not look at Triton
    from vllm.v1.worker.gpu.sample.gumbel import apply_temperature, gumbel_sample
    from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores

    torch.manual_seed(0)
    row = 2 * torch.randn(VOCABULARY)
    scores = row.repeat(len(SEEDS), 1)
    temperature = torch.full((len(SEEDS),), TEMPERATURE)
    rows = torch.arange(len(SEEDS))
    seeds = torch.tensor(SEEDS)

    def drawn(position: int, order: torch.Tensor = rows) -> tuple[torch.Tensor, torch.Tensor]:
        """[len(order)] Tokens of the rows in ``order``, and their log-probabilities."""
        processed = scores[order].clone()
        apply_temperature(processed, order, temperature)
        positions = torch.full_like(order, position)
        sampled = gumbel_sample(processed, order, temperature, seeds, positions, False, False)
        return sampled, compute_topk_scores(processed, 0, sampled).logprobs[:, 0]

    found = [drawn(position) for position in range(POSITIONS)]
    backwards = [drawn(position, rows.flip(0))[0].flip(0) for position in range(POSITIONS)]
    few = row[:FEW].repeat(DRAWS, 1)
    same = torch.zeros(DRAWS, dtype=torch.int64)
    counted = gumbel_sample(few, same, temperature, seeds, torch.arange(DRAWS), True, False)
    greedy = gumbel_sample(scores, rows, 0 * temperature, seeds, rows, False, False)
    torch.save(
        {
            "row": row,
            "tokens": torch.stack([tokens for tokens, _ in found]),
            "logprobs": torch.stack([logprobs for _, logprobs in found]),
            "backwards": torch.stack(backwards),
            "counts": counted.bincount(minlength=FEW),
            "greedy": greedy,
        },
        sys.argv[1],
    )
