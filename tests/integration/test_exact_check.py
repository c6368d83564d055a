"""Exact credit of the self-check: from a recipe's choices to tokens, to the loss."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from svr_lightning.core.credit import check_choices
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.rewards import RewardWeights
from svr_lightning.core.types import Choice, Sample, ScoredTurn, TokenChoice, Verdict
from svr_lightning.recipes.svr import SVR
from svr_lightning.recipes.svr_plus import SVRPlus
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.update import (
    TrainBatch,
    micro_batches,
    policy_update_loss,
)
from tests.commands import SHIPPED
from tests.samples import TEMPERATURE, rollout, sample
from tests.small_fit import data, module, trainer, turns_of

EMBEDDED = ("countdown_policy", "arithmetic_policy")
SPEC = LossSpec(beta=0.0)


def embedded(name: str) -> Any:
    return AutoTokenizer.from_pretrained(SHIPPED.with_name(name))


def byte_level() -> Any:
    """Splits text as Qwen's tokenizer does: words with the space before them, single digits."""
    split = pre_tokenizers.Split(
        Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"), "isolated"
    )
    tokenizer = Tokenizer(models.BPE())
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([check("INCORRECT", "0.70")] * 9, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    return fast


TOKENIZERS = {**{name: lambda name=name: embedded(name) for name in EMBEDDED}, "bytes": byte_level}


def check(verdict: str, confidence: str) -> str:
    body = f"VERDICT: {verdict}; CONFIDENCE: {confidence}"
    return f"<answer>(10-4)+5</answer>\n<self_check>{body}</self_check>"


def checked(tokenizer: Any, verdict: str, confidence: str) -> Sample:
    """A right answer with this self-check, and what else it could say."""
    text = check(verdict, confidence)
    turn = ScoredTurn(
        correct=True,
        truncated=False,
        verdict=Verdict(verdict),
        confidence=float(confidence),
        completion_tokens=9,
        task_format=1.0,
        self_check_format=1.0,
        text=text,
    )
    ids = (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)
    choices = check_choices(turn, 0, RewardWeights())
    return dataclasses.replace(sample(completion=ids), choices=choices)


# --- in tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_verdict_is_a_choice_among_the_first_tokens_of_three_words(name, verdict):
    tokenizer = TOKENIZERS[name]()
    one = checked(tokenizer, verdict.value, "1.0")
    (choice,) = Renderer(tokenizer).token_choices(one.completion_ids, one.choices)
    text = check(verdict.value, "1.0")
    before = tokenizer.decode(list(one.completion_ids[: choice.position]))
    assert text.startswith(before)
    for word, token in zip(Verdict, choice.token_ids, strict=True):
        whole = check(word.value, "1.0")
        ids = tokenizer.encode(whole, add_special_tokens=False)
        assert ids[: choice.position] == list(one.completion_ids[: choice.position])
        assert ids[choice.position] == token
    # With confidence 1 and a right answer .5; CORRECT earns .3 more.
    assert choice.scores == pytest.approx((0.8, 0.5, 0.5))


def by_confidence(tokenizer: Any, one: Sample) -> tuple[dict[str, float], TokenChoice]:
    """The scores of the tokens that a confidence could begin with, and the choice."""
    _, choice = Renderer(tokenizer).token_choices(one.completion_ids, one.choices)
    said = map(tokenizer.decode, choice.token_ids)
    return dict(zip(said, choice.scores, strict=True)), choice


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_confidence_of_one_token_is_a_choice_among_all_that_it_could_be(name):
    tokenizer = embedded(name)
    one = checked(tokenizer, "UNSURE", "0.70")
    said, choice = by_confidence(tokenizer, one)
    assert one.completion_ids[choice.position] == tokenizer.convert_tokens_to_ids("70")
    assert said.keys() == {"00", "0", *map(str, range(10, 100))}
    # .5 (1 - (c - 1)^2): .455 at .7, .32 at .4, 0 at 0.
    assert [said[c] for c in ("70", "40", "00")] == pytest.approx([0.455, 0.32, 0.0])
    # A zero may go on as 01 to 09: the mean over c = .01 ... .09 of .5 (2 c - c^2) is
    # .05 - .5 * .0285 / 9 = .0484.
    assert said["0"] == pytest.approx(0.05 - 0.5 * 0.0285 / 9)


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_confidence_of_two_tokens_keeps_its_second(name):
    tokenizer = embedded(name)
    said, _ = by_confidence(tokenizer, checked(tokenizer, "UNSURE", "0.05"))
    # 0 goes on with the sampled 5, as .05: .5 (1 - .95^2).
    assert said["0"] == pytest.approx(0.5 * (1 - 0.95**2))
    assert said["95"] == pytest.approx(0.5 * (1 - 0.05**2))


def test_with_a_token_for_each_digit_the_second_stays_as_sampled():
    tokenizer = byte_level()
    said, _ = by_confidence(tokenizer, checked(tokenizer, "UNSURE", "0.75"))
    assert said == pytest.approx({str(d): 0.5 * (1 - (d / 10 - 0.95) ** 2) for d in range(10)})


@pytest.mark.parametrize("name", TOKENIZERS)
def test_one_decimal_is_a_choice_among_ten_digits(name):
    tokenizer = TOKENIZERS[name]()
    said, _ = by_confidence(tokenizer, checked(tokenizer, "UNSURE", "0.7"))
    assert said == pytest.approx({str(d): 0.5 * (1 - (d / 10 - 1) ** 2) for d in range(10)})


def test_tokens_that_the_tokenizer_would_not_write_have_no_choice():
    tokenizer = embedded("countdown_policy")
    one = checked(tokenizer, "CORRECT", "0.70")
    letters = [tokenizer.convert_tokens_to_ids(c) for c in "CORRECT"]
    place = one.completion_ids.index(tokenizer.convert_tokens_to_ids("CORRECT"))
    ids = (*one.completion_ids[:place], *letters, *one.completion_ids[place + 1 :])
    assert tokenizer.decode(list(ids)) == tokenizer.decode(list(one.completion_ids))
    spelt = dataclasses.replace(one, completion_ids=ids)
    (choice,) = Renderer(tokenizer).token_choices(spelt.completion_ids, spelt.choices)
    assert tokenizer.decode([ids[choice.position]]) == "70"


# --- in the loss --------------------------------------------------------------------------------

CHOICES = {
    (5, 6, 7, 8, 9): [TokenChoice(position=1, token_ids=(9, 11, 30), scores=(0.3, -0.8, 0.1))],
    (4, 6, 7, 8, 9, 10): [
        TokenChoice(position=0, token_ids=(7, 2), scores=(1.0, 0.0)),
        TokenChoice(position=2, token_ids=(9, 1, 2, 3), scores=(0.5, 0.4, -0.3, 0.2)),
    ],
}
ANY = (Choice(span=(0, 1), alternatives=("a", "b"), scores=(0.0, 1.0)),)


def with_choices() -> list[Sample]:
    """Two sequences with one and two choices, and one whose self-check cannot be read."""
    rows = [((5, 6, 7), (8, 9), ANY), ((4, 6), (7, 8, 9, 10), ANY), ((5,), (6, 7), ())]
    return [
        dataclasses.replace(sample(prompt, completion, advantage=0.0), choices=choices)
        for prompt, completion, choices in rows
    ]


def token_choices(ids: tuple[int, ...], _: Any) -> list[TokenChoice]:
    (found,) = [found for sequence, found in CHOICES.items() if sequence[-len(ids) :] == ids]
    return found


def split(samples: list[Sample], accumulate: int = 1) -> list[TrainBatch]:
    return micro_batches(
        samples,
        accumulate=accumulate,
        updates=1,
        version=0,
        renderer=SimpleNamespace(token_choices=token_choices),
        dummy_sample=samples[0],
    )


def update(
    model: Any, batches: list[TrainBatch]
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """What is logged of a step, its loss among it, and its gradient."""
    model.zero_grad()
    rows = []
    for batch in batches:
        part = policy_update_loss(model, None, batch, SPEC, temperature=TEMPERATURE)
        (part.loss / len(batches)).backward()
        rows.append(part.logged)
    means = {key: sum(row[key].item() for row in rows) / len(rows) for key in rows[0]}
    return means, {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def policy() -> Any:
    """The embedded policy, in the precision of finite differences."""
    return AutoModelForCausalLM.from_pretrained(SHIPPED).double().eval()


def expected_by_hand(model: Any) -> torch.Tensor:
    """The sum over choices of their expected scores, from the model's full scores."""
    total = torch.zeros((), dtype=torch.float64)
    for ids, choices in CHOICES.items():
        prompt = {5: 3, 4: 2}[ids[0]]
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        for choice in choices:
            scores = logits[prompt + choice.position - 1, list(choice.token_ids)] / TEMPERATURE
            weights = scores.exp() / scores.exp().sum()
            total = total + (weights * torch.tensor(choice.scores, dtype=torch.float64)).sum()
    return total


def test_the_term_is_minus_the_mean_over_self_checks_of_their_expected_scores(policy):
    plain = rollout(6)
    without, gradient = update(policy, split(plain))
    logged, found = update(policy, split([*plain, *with_choices()]))
    policy.zero_grad()
    expected = expected_by_hand(policy) / 3  # the one that cannot be read counts too
    expected.backward()
    assert logged["train/exact/score"] == pytest.approx(expected.item(), abs=1e-6)
    assert logged["train/exact/choices"] == pytest.approx(3 / 3)
    cost = logged["train/loss"] - without["train/loss"]
    assert cost == pytest.approx(-expected.item(), abs=1e-6)
    for name, parameter in policy.named_parameters():
        difference = found[name] - gradient[name]
        torch.testing.assert_close(difference, -parameter.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("accumulate", [3, 9])  # the last has a filler
def test_micro_batches_add_up_to_the_whole_steps_gradient_and_its_logged_values(policy, accumulate):
    samples = [*rollout(6), *with_choices()]
    logged, whole = update(policy, split(samples))
    batches = split(samples, accumulate)
    assert len(batches) == accumulate
    of_parts, parts = update(policy, batches)
    for key in ("train/loss", "train/exact/score", "train/exact/choices"):
        assert of_parts[key] == pytest.approx(logged[key], abs=1e-6)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-6, rtol=1e-5)


def test_a_self_check_shares_the_forward_pass_of_its_turn():
    solution = sample((5, 6, 7), (8, 9))
    (batch,) = split([solution, with_choices()[0]])
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9]]
    assert batch.mask.tolist() == [[1, 1], [0, 0]]
    assert batch.choices.rows.tolist() == [0]
    assert batch.choices.logit_positions.tolist() == [3]  # token 9 stands in column 4
    assert batch.weights.loss == 1.0  # the mean over one sequence: the self-check is not in it


def test_without_self_checks_a_batch_has_no_choices(policy):
    (batch,) = split(rollout(4))
    assert (len(batch.choices.rows), batch.weights.choices) == (0, 0.0)
    logged = policy_update_loss(policy, None, batch, SPEC, temperature=TEMPERATURE).logged
    assert not [key for key in logged if "exact" in key]


def test_choices_need_a_renderer_which_knows_their_tokens():
    with pytest.raises(ValueError, match="or from choices, need renderer="):
        micro_batches(with_choices(), accumulate=1, updates=1, version=0)


# --- in training --------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [SVR, SVRPlus])
def test_the_self_checks_of_all_turns_are_learned_from(tmp_path, recipe):
    options = {"group_size": 4, "horizon": 2, "length_scale": 92, "loss": SPEC}
    model = module(recipe=recipe(exact_check=1.0, **options))
    logged: dict[str, float] = {}
    model.write_metrics = lambda stats, step: logged.update(stats)
    trainer(tmp_path, max_steps=1).fit(model, data())
    turns = turns_of(model)
    assert len(turns) == 2 * 4 * 2
    # Two choices in a turn that states both in form.
    assert 0 < logged["train/exact/choices"] <= 2
    samples = [
        one for group in model.rollout.groups for one in group.samples if one.choices is not None
    ]
    assert len(samples) == len(turns)
    tokens_of = model.actor.renderer.token_choices
    stated = sum(len(tokens_of(one.completion_ids, one.choices)) for one in samples)
    assert logged["train/exact/choices"] == pytest.approx(stated / len(turns))
