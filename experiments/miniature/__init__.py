"""The miniature experiment: every method, ablation and variant side by side, on two cores."""
