r"""SVR in lm-evaluation-harness, through the server that refines answers.

    pip install -e ".[lm-eval,serve]"
    python -m svr_lightning serve --task countdown --policy embedded:countdown-tiny \
        --max-model-len 1024
    python examples/evaluate_with_lm_eval.py --url http://127.0.0.1:8080/v1

The same with the harness's own command: docs/extending.md.
"""

import argparse

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from svr_lightning.adapters.lm_harness import FOLDER, METRICS


def main() -> None:
    """Evaluate and print the metrics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="of the server, up to /v1")
    parser.add_argument("--model", default="svr", help="its name there")
    parser.add_argument("--limit", type=int, default=20, help="problems")
    options = parser.parse_args()
    data = {"task": "countdown", "path": "embedded:countdown-tiny", "split": "dev"}
    found = simple_evaluate(
        model="local-chat-completions",
        model_args={
            "model": options.model,
            "base_url": f"{options.url}/chat/completions",
            "num_concurrent": 16,
        },
        tasks=["svr"],
        task_manager=TaskManager(
            include_path=FOLDER,
            include_defaults=False,
            metadata={**data, "limit": options.limit},
        ),
        apply_chat_template=True,
        bootstrap_iters=0,
    )
    for name in METRICS:
        print(f"{name:24}{found['results']['svr'][f'{name},none']:.3f}")


if __name__ == "__main__":
    main()
