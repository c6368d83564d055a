"""SVR as an environment of verifiers, named like this file.

pip install -e ".[verifiers]"        # in a separate environment: docs/adapters.md
PYTHONPATH=examples vf-eval svr-environment --model policy --no-push \
        --client.base-url http://127.0.0.1:8000/v1 --env.taskset.split dev
"""

from svr_lightning.adapters.verifiers_env import SVRHarness, SVRTaskset

__all__ = ["SVRHarness", "SVRTaskset"]
