"""`python -m notebooks.llm_distributed.measuring` measures into results/bench/llm_distributed.json; with the argument
`correct`, only what does not depend on time (tokens and sockets), with `ray`, only what runs on Ray."""

from __future__ import annotations

import sys

from notebooks.llm_distributed import convert
from notebooks.llm_distributed.convert import cutting
from notebooks.llm_distributed.measuring import cost, quality, scaling, sockets, speed
from utils import bench, preflight, report
from utils.models.llm import MODEL_XML

CHECKED = "checked: "  # of notes that do not depend on time


def main() -> None:
    """Speed of one process and of two ranks at all precisions, more tokens than in the notebook, sockets, and Ray."""
    if sys.argv[1:] == ["ray"]:
        measure_ray()
        return
    from transformers import AutoTokenizer

    checkpoint = convert.checkpoint_folder()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    asked, page = quality.prompts(tokenizer), quality.page(tokenizer)
    checked = token_notes(asked, page) | socket_notes(convert.prepare("tiny", 1)[0] / MODEL_XML)
    if sys.argv[1:] == ["correct"]:
        store(CHECKED, checked)
        return
    names = {"FP32": "FP16", "INT8": "INT8", "INT4": "INT4"}
    whole = {precision: convert.prepare("tiny", 1, name)[0] for precision, name in names.items()}
    halves = {precision: convert.prepare("tiny", 2, name) for precision, name in names.items()}
    hidden = cutting.read_config(checkpoint)["hidden_size"]
    with bench.exclusive() as notes:
        rows = speed.measure(whole, halves, checkpoint, rounds=9)
        found = speed.splits(whole["FP32"], halves["FP32"], asked[0])
        fitted, call_s = cost.Link.fit(speed.link()), preflight.in_child(cost.measure_call, hidden)
    notes |= speed.split_notes(found) | checked
    exchanges_ms = 1e3 * found[speed.SPLIT_RANKS]["calls"][0] * fitted.seconds(4 * hidden)
    predicted = max(found[speed.SILENT_RANKS]["ms"]) + exchanges_ms  # what is missing is waiting for the slower rank
    notes |= cost.notes(fitted, call_s, predicted) | cost.speedup_notes(fitted, call_s)
    report.save_bench("llm_distributed", rows, notes)
    measure_ray()


def measure_ray() -> None:
    """Measure `scaling` on a quiet machine, and store its notes."""
    with bench.exclusive():
        store(scaling.RAY, scaling.measure())


def store(prefix: str, notes: dict) -> None:
    """Replace the stored notes that begin with `prefix`."""
    file = report.BENCH / "llm_distributed.json"
    if file.is_file():
        report.amend(file, prefix, notes)
    else:
        report.save_bench("llm_distributed", [], notes)


def token_notes(asked: list, page) -> dict[str, str]:
    """How many of 128 tokens after each prompt are those of one process, for each number of ranks."""
    expected = quality.examine(convert.prepare("tiny", 1), asked, page).tokens
    notes = {}
    for ranks in (2, 3, 4):
        tokens = quality.examine(convert.prepare("tiny", ranks), asked, page).tokens
        pairs = [(a, b) for own, other in zip(tokens, expected, strict=True) for a, b in zip(own, other, strict=True)]
        same = sum(a == b for a, b in pairs)
        notes[f"{CHECKED}tokens of {ranks} ranks that are those of one process"] = f"{same} of {len(pairs)}"
    return notes


def socket_notes(file) -> dict[str, str | int]:
    """What MODEL_DISTRIBUTION_POLICY does on one socket, and on two pretended ones where that is possible."""
    found = {"one socket": preflight.in_child(sockets.report, file)}
    try:
        found["two pretended sockets"] = sockets.pretended(file)
    except OSError as error:
        print(error, file=sys.stderr)
    expected = found["one socket"]["default"]["tokens"]
    notes = {}
    for where, policies in found.items():
        for policy, own in policies.items():
            notes[f"{CHECKED}{where}, {policy}, threads"] = own["threads"]
            same = "yes" if own["tokens"] == expected else "no"
            notes[f"{CHECKED}{where}, {policy}, tokens as by default"] = same
    return notes


if __name__ == "__main__":
    main()
