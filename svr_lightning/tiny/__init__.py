"""The embedded default: a small Countdown and a policy of half a million parameters for it.

``problems`` says what is asked and what is held out, ``traces`` demonstrates, ``tokenizer`` and
``warmstart`` build ``countdown_policy/``, the checkpoint that ships with the package.
"""
