"""SVR in Inspect, on any model that Inspect reaches.

    pip install -e ".[inspect]"
    python examples/evaluate_with_inspect.py --model openai-api/mine/policy --model-base-url http://127.0.0.1:8000/v1
    inspect view

Replace the problems by your own: docs/extending.md.
"""

import argparse

from inspect_ai import eval as inspect_eval

from svr_lightning.adapters.inspect_eval import svr


def main() -> None:
    """Evaluate and print the metrics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="as Inspect names it")
    parser.add_argument("--model-base-url", help="of a server")
    parser.add_argument("--limit", type=int, default=20, help="problems")
    parser.add_argument("--max-turns", type=int, default=10, help="T_max")
    parser.add_argument("--log-dir", default="logs", help="where the log goes")
    options = parser.parse_args()
    (log,) = inspect_eval(
        svr(
            task="countdown",
            path="embedded:countdown-tiny",
            split="dev",
            limit=options.limit,
            max_turns=options.max_turns,
        ),
        model=options.model,
        model_base_url=options.model_base_url,
        log_dir=options.log_dir,
        display="none",
    )
    if log.results is None:
        raise SystemExit(log.error.message if log.error else log.status)
    for name, metric in log.results.scores[0].metrics.items():
        print(f"{name:24}{metric.value:.3f}")
    print(log.location)


if __name__ == "__main__":
    main()
