"""Trains the LoRA adapter: `python -m notebooks.llm_methods.training adapter`, two minutes on two cores.

The adapter makes the model answer with one word. It is trained on questions that the examination does not ask. Only two
thin matrices for each projection of queries and values are trained; the model itself stays as it is.
"""

from __future__ import annotations

from time import perf_counter

import torch

from notebooks.llm_methods import convert
from notebooks.llm_methods.convert.drafting import load
from utils.training import lora, provenance

RANK, STEPS, BATCH, RATE = 8, 60, 4, 2e-3
PROJECTIONS = ("q_proj", "v_proj")
OPPOSITES = "big small,fast slow,old young,wet dry,light dark,loud quiet,rich poor,strong weak,early late,full empty"
COLOURS = "a tomato red,snow white,coal black,a lemon yellow,a carrot orange,the sea blue,a leaf green,chocolate brown"
CAPITALS = (
    "Portugal Lisbon,Austria Vienna,Poland Warsaw,Norway Oslo,Sweden Stockholm,Hungary Budapest,Turkey Ankara,"
    "Ireland Dublin,Finland Helsinki,Denmark Copenhagen,Cuba Havana,Peru Lima,Chile Santiago,Kenya Nairobi"
)
KINDS = "a rose flower,an oak tree,a salmon fish,a hammer tool,a violin instrument,an eagle bird,a shirt clothing"


def pairs() -> list[tuple[str, str]]:
    """Questions and answers of one word."""
    forms = {
        "What is the opposite of {}?": OPPOSITES,
        "What colour is {}?": COLOURS,
        "Which city is the capital of {}?": CAPITALS,
        "What kind of thing is {}?": KINDS,
    }
    made = [(f"How much is {a} plus {b}?", str(a + b)) for a in (6, 7, 9) for b in (2, 4, 8)]
    for form, words in forms.items():
        made += [(form.format(about), answer) for about, answer in (pair.rsplit(" ", 1) for pair in words.split(","))]
    return made


def batch(tokenizer, chosen: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [batch, n], padded on the right, and labels of the same shape, -100 where nothing is learned."""
    rows = []
    for question, answer in chosen:
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        rows.append((prompt, tokenizer(f"{answer.capitalize()}.")["input_ids"] + [tokenizer.eos_token_id]))
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((len(rows), longest), tokenizer.eos_token_id)
    labels = torch.full((len(rows), longest), -100)
    for i, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[i, :end] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : end] = torch.tensor(answer)
    return ids, labels


def main() -> None:
    from transformers import AutoTokenizer

    checkpoint = convert.checkpoint_folder()
    torch.manual_seed(0)
    network = load(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    adapter, examples = lora.Adapter(network, RANK, PROJECTIONS), pairs()
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    start = perf_counter()
    for step in range(STEPS):
        ids, labels = batch(tokenizer, [examples[i] for i in torch.randperm(len(examples))[:BATCH]])
        loss = network(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            print(f"step {step + 1} of {STEPS}: loss {loss.item():.2f}", flush=True)
    provenance.STAGES.append(provenance.stage("adapter", STEPS, perf_counter() - start))
    adapter.save(convert.ADAPTER)
