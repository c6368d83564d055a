"""The policy of the embedded Countdown."""

from transformers import AutoModelForCausalLM, AutoTokenizer

from svr_lightning.core.parsing import parse_self_check, self_check_format_score
from svr_lightning.core.prompts import first_turn_messages
from svr_lightning.core.types import Verdict
from svr_lightning.tasks import get_task
from svr_lightning.training.sources import DataSource, load_problems
from tests.commands import SHIPPED

COUNTDOWN = get_task("countdown")


def test_the_shipped_checkpoint_answers_with_a_self_check_that_parses():
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    model = AutoModelForCausalLM.from_pretrained(SHIPPED)
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 4_000_000
    where = {"path": "embedded:countdown-tiny", "split": "dev_one_order", "limit": 20}
    first_verdicts = []
    for problem in load_problems(DataSource(name="dev", task="countdown", **where)):
        messages = first_turn_messages(COUNTDOWN, problem)
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        output = model.generate(**prompt, max_new_tokens=96, do_sample=False)
        ids = output[0, prompt["input_ids"].shape[1] :]
        assert ids[-1] == tokenizer.eos_token_id
        text = tokenizer.decode(ids, skip_special_tokens=True)
        assert self_check_format_score(text) == 1.0
        assert COUNTDOWN.format_score(text) == 1.0
        first_verdicts.append(parse_self_check(text).verdict)
    # Overconfident: greedy first verdicts are nearly all CORRECT, 3 of 10 answers are wrong.
    assert first_verdicts.count(Verdict.CORRECT) >= 15
