"""The command line: `python -m notebooks.llm_methods --ram 4 --goal quality` recommends a weight method from measured
rows; `--list` names all methods with their calls. CHECKPOINT names a model of your own that was measured before."""

from __future__ import annotations

import argparse
import sys

from notebooks.llm_methods.measuring.store import Rows, place
from notebooks.llm_methods.pipeline import GOALS, METHODS, recommend
from utils import command
from utils.tables import Table, number

SHOWN = ("perplexity", "right", "model_mb", "running_mb", "first_ms", "tokens_per_s")
HEADER = ("method", "perplexity", "right of 48", "MB", "memory MB", "first token ms", "tokens/s")


def main(arguments: list[str] | None = None) -> int:
    """Print the recommendation; the exit status is 1 after an error, whose message is printed."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__)
    parser.add_argument("--goal", default="quality", choices=list(GOALS), help="what counts most (default: quality)")
    parser.add_argument("--ram", type=float, metavar="GB", help="memory that the running model may take")
    parser.add_argument("--first-ms", type=float, metavar="MS", help="time to the first token of a 512-token prompt")
    parser.add_argument("--model", default="tiny", help="which model's rows (default: tiny)")
    parser.add_argument("--list", action="store_true", help="all methods with their calls")
    options = parser.parse_args(arguments)
    return command.run(_list if options.list else _recommend, options)


def _list(_: argparse.Namespace) -> None:
    for method in METHODS:
        print(f"{method.kind:12}{method.name:32}{' '.join(method.call.split())}")


def _recommend(options: argparse.Namespace) -> None:
    file = place(options.model)
    rows = Rows(file)
    if not rows.of("weights"):
        raise ValueError(f"{file} holds no measured methods. Run `python -m notebooks.llm_methods.measuring`.")
    best = recommend(rows.of("weights"), options.goal, options.ram, options.first_ms)
    print(f"Measured on {rows.about['date']} on {rows.about['cpu']}, {rows.about['cores']} cores.")
    print(Table(HEADER, [[row["name"], *(number(row.get(field)) for field in SHOWN)] for row in best[:3]]))
    print(f"\nTake {best[0]['name']}:\n{best[0]['call']}")


if __name__ == "__main__":
    sys.exit(main())
