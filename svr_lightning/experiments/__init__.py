"""The miniature experiment: every method, ablation and variant on the embedded task, side by side."""
