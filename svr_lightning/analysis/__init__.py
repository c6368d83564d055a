"""What recordings say: records, metrics, intervals, replay, certificates; no torch, no engine."""
