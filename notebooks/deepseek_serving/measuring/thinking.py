"""How many word problems of two steps the tiny model solves: with thoughts, without them, and without its adapter.

All problems are kept from training (`data.examination`). Without thoughts, the prompt goes on with thoughts that are
empty, so the model has to answer at once. `python -m notebooks.deepseek_serving.measuring.thinking` asks all of them,
and writes results/examination/deepseek_serving-thinking.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from notebooks.deepseek_serving import convert, data
from notebooks.deepseek_serving.data import Problem
from notebooks.deepseek_serving.pipeline import OPEN
from utils import compare, report
from utils.models.llm import FP32_PROPERTIES
from utils.models.questions import ask_torch, chat_prompt, generate_together, load_torch, token_table

GOAL = 0.8  # the share of right answers from which on thinking is worth showing
MAX_FEWER, LEAST_FEWER = 0.04, 4  # right answers than PyTorch: a share of the problems, and at least so many
UNFIT = ("INT4",)  # precisions at which this model loses count: reported only
TOKENS = 160  # of thoughts and answer
PARITY_PROBLEMS = 3


def solve(
    folder: Path, problems: Sequence[Problem], device: str = "CPU", *, thinks: bool = True, **properties
) -> list[str]:
    """The replies of an IR folder with greedy decoding in one batch; thinks: False puts empty thoughts before each.

    properties: of the device; with `adapters`, the prompt ends with <think>, as the template of the merged model does.
    """
    begin = f"{OPEN}\n" if "adapters" in properties else ""
    end = "" if thinks else convert.NO_THOUGHTS

    def prompt(tokenizer, question: str) -> str:
        return chat_prompt(tokenizer, question) + begin + end

    return generate_together(folder, [own.question for own in problems], TOKENS, device, prompt, **properties)


def count_right(replies: Sequence[str], problems: Sequence[Problem]) -> int:
    """How many replies end with the answer; what stands before `</think>` does not count."""
    return sum(own.is_right(reply.rpartition("</think>")[2]) for reply, own in zip(replies, problems, strict=True))


def solve_by_torch(network, tokenizer, problems: Sequence[Problem], at_once: int = 24) -> list[str]:
    """The replies of a transformers model with greedy decoding."""
    parts = [problems[start : start + at_once] for start in range(0, len(problems), at_once)]
    asked = [[(own.question, own.answer) for own in part] for part in parts]
    return [reply for part in asked for reply in ask_torch(network, tokenizer, part, TOKENS)]


def rows(
    problems: Sequence[Problem],
    replies: Mapping[str, Sequence[str]],
    expected: Sequence[str],
    controls: Mapping[str, Sequence[str]],
    metric: str = "right answers of {} two-step problems",
    unfit: Sequence[str] = UNFIT,
) -> list[dict]:
    """Quality rows: problems solved with thoughts, by precision.

    expected: PyTorch's replies; a precision may have a few right ones less. controls: by name. unfit: precisions that
    are reported only.
    """
    count, reference = len(problems), count_right(expected, problems)
    threshold = reference - max(LEAST_FEWER, round(MAX_FEWER * count))
    metric, made = metric.format(count), []
    for precision, own in replies.items():
        right, needed = count_right(own, problems), None if precision in unfit else threshold
        of = {"goal": round(GOAL * count), "of": count}
        made.append(compare.quality(metric, precision, right, reference, needed, "higher", **of))
    for name, own in controls.items():
        made.append(compare.control(metric, name, count_right(own, problems), threshold, "higher"))
    return made


def examine(device: str = "CPU") -> list[dict]:
    """The rows of the notebook, at INT8: a problem of every third wording."""
    problems, ir = data.examination(each=1)[::3], convert.prepare_thinking("INT8")
    expected = solve_by_torch(*load_torch(convert.thinking_checkpoint()), problems)
    return rows(problems, {"INT8": solve(ir, problems, device)}, expected, _controls(ir, problems, device))


def examine_all() -> list[dict]:
    """Rows of all problems, at every precision; and of problems in a wording that training never has."""
    folders = {precision: convert.prepare_thinking(precision) for precision in convert.PRECISIONS}
    reference = load_torch(convert.thinking_checkpoint())
    problems, others = data.examination(), data.examination(data.OTHER_WORDINGS, 15)
    replies = {precision: solve(folder, problems) for precision, folder in folders.items()}
    made = rows(problems, replies, solve_by_torch(*reference, problems), _controls(folders["FP16"], problems))
    replies = {precision: solve(folder, others) for precision, folder in folders.items()}
    metric = "right answers of {} in a wording that was not trained"
    return made + rows(others, replies, solve_by_torch(*reference, others), {}, metric, convert.PRECISIONS)


def _controls(ir: Path, problems: Sequence[Problem], device: str = "CPU") -> dict[str, list[str]]:
    """The replies of an IR without thoughts, and those of the model without the adapter."""
    return {
        "answers without thoughts": solve(ir, problems, device, thinks=False),
        "SmolLM2 without the adapter": solve(convert.prepare("tiny", "FP16"), problems, device),
    }


def parity(device: str = "CPU") -> list[dict]:
    """Parity rows of replies in FP32, token by token: the merged model and the adapter at run time, with PyTorch."""
    import openvino_genai as genai

    problems = data.examination(each=1)[:PARITY_PROBLEMS]
    network, tokenizer = load_torch(convert.thinking_checkpoint())
    expected = solve_by_torch(network, tokenizer, problems, at_once=1)
    merged = solve(convert.prepare_thinking("FP16"), problems, device, **FP32_PROPERTIES)
    adapters = genai.AdapterConfig(genai.Adapter(str(convert.ADAPTER)), 1.0)
    loaded = solve(convert.prepare("tiny", "FP16"), problems, device, adapters=adapters, **FP32_PROPERTIES)
    tables = [token_table(tokenizer, texts, TOKENS) for texts in (expected, merged, loaded)]
    return [
        compare.parity(f"thoughts and answers, {how}: greedy tokens", table, tables[0], 0)
        for how, table in zip(("merged", "adapter at run time"), tables[1:], strict=True)
    ]


def main() -> None:
    """Let the tiny model solve all problems at every precision, and write the rows to results/examination."""
    report.save_examination("deepseek_serving", "tiny", examine_all(), part="thinking")


if __name__ == "__main__":
    main()
