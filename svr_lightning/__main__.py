"""``python -m svr_lightning``: training, evaluation, and what is read off recorded samples."""

import sys

HELP = """usage: python -m svr_lightning [-h] [--version] COMMAND ...

Self-Verifying Refinement: train policies that judge their own answers and stop when they are
good enough.

  fit       train, validate on the way, compare before and after on held-out problems
  validate  adaptive inference on the validation sets
  test      adaptive inference on the test sets
  predict   answer questions of your own, turn by turn

From recorded samples, without a model:

  sweep     every fixed budget, threshold and gate from one recording
  tune      a threshold with a guarantee on premature stops
  vote      majority voting from a pool of samples
  report    figures, tables and a page to read
  regrade   grade recorded samples with another grader

  python -m svr_lightning fit --config configs/countdown_tiny.yaml
  python -m svr_lightning fit --config configs/gsm8k.yaml --config configs/hardware/cpu_smoke.yaml
  python -m svr_lightning predict --config configs/countdown_tiny.yaml \\
      --question "3 5 8 = 16"

validate, test and predict also ask a server that speaks the OpenAI protocol, with the key in
OPENAI_API_KEY or the variable that --api-key-env names:

  python -m svr_lightning test --config configs/gsm8k.yaml --engine openai \\
      --base-url http://127.0.0.1:8000/v1 --model-name NAME [--concurrency 64] [--timeout 600]

Every key of a configuration can be given on the command line, --model.evaluation.threshold 0.9.
`SUBCOMMAND --help` lists them all; `--print_config` prints the resolved configuration.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 is success, 2 a fault of the configuration or the data."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if arguments[0] == "--version":
        from svr_lightning import __version__

        print(__version__)
        return 0
    from svr_lightning.cli import commands

    if arguments[0] in commands.COMMANDS:
        return commands.run(arguments[0], arguments[1:])
    from svr_lightning.cli.lightning import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
