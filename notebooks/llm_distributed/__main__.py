"""The command line: `python -m notebooks.llm_distributed run --ranks 2 "What is the capital of France?"`."""

from __future__ import annotations

import argparse
import sys

from notebooks.llm_distributed import convert
from notebooks.llm_distributed.pipeline.ranks import RankFailed, Ranks
from utils import command


def main(arguments: list[str] | None = None) -> int:
    """Answer a question on several ranks; the exit status is 1 after an error, whose message is printed."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__.split(":")[0] + ".")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="answer a question")
    run.add_argument("question")
    run.add_argument("--ranks", type=int, default=2, help="how many processes hold a share of the model")
    run.add_argument("--tokens", type=int, default=64, help="the most of an answer")
    run.add_argument("--precision", choices=convert.PRECISIONS, default="FP16", help="of the weights")
    run.add_argument("--model", choices=list(convert.MODELS), default="tiny")
    return command.run(_answer, parser.parse_args(arguments))


def _answer(options: argparse.Namespace) -> None:
    from transformers import AutoTokenizer

    folders = convert.prepare(options.model, options.ranks, options.precision)
    tokenizer = AutoTokenizer.from_pretrained(convert.checkpoint_folder(options.model))
    chat = [{"role": "user", "content": options.question}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    try:
        with Ranks(folders) as ranks:
            steps = list(ranks.generate(ids, options.tokens, [tokenizer.eos_token_id]))
            _report(ranks, steps)
    except RankFailed as error:
        raise ValueError(str(error)) from error
    print(tokenizer.decode([step.token for step in steps], skip_special_tokens=True))


def _report(ranks: Ranks, steps: list) -> None:
    """What each rank held and did, to standard error."""
    for rank, held in enumerate(ranks.held):
        sent = sum(step.bytes_sent[rank] for step in steps) / 1e6
        waited = sum(step.group_ms[rank] for step in steps) / sum(step.ms[rank] for step in steps)
        heads, columns = (f"{first} to {end - 1}" for first, end in (held["heads"], held["columns"]))
        print(
            f"rank {rank}: heads {heads}, columns {columns}, {held['weights_mb']:.0f} MB of weights, "
            f"{sent:.1f} MB sent, {100 * waited:.0f} % of the time in the group",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
