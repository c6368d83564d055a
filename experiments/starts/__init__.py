"""The main job from ten unselected starts, recomputed from published outcomes of every problem."""
