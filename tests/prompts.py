"""Questions, drafts and rendered messages of the prompt goldens."""

from svr_lightning.core.types import Message

QUESTIONS = {
    "countdown": "Using the numbers [44, 19, 35], create an equation that equals 98. You can use "
    "basic arithmetic operations (+, -, *, /) and each number can only be used once.",
    "gsm8k": "A robe takes 2 bolts of blue fiber and half that much white fiber.  How many bolts "
    "in total does it take?",
    "math": "What is $\\frac{1}{2}$ of $7$?",
}


DRAFTS = {
    "countdown": "<think>44 + 19 = 63, 63 + 35 = 98</think>\n<answer>44 + 19 + 35</answer>",
    "gsm8k": "<think>2 + 1 = 3</think>\n<answer>\\boxed{3}</answer>",
    "math": "<think>7/2</think>\n<answer>\\boxed{\\frac{7}{2}}</answer>",
}


def rendered(messages: list[Message]) -> str:
    return "".join(f"[{message['role']}]\n{message['content']}\n" for message in messages)
