"""What is generated from results: the front page's tables, tables of a notebook's README, and its RESULTS.md.

The same results give the same bytes.
"""

import html
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from utils import compare
from utils.about import About
from utils.setup.systems import SYSTEMS
from utils.tables import Table, number

CATALOGUE = ["Preview", "Notebook", "Level, time, memory", "Quality of `tiny`", "Speed of `tiny`"]
SPEED_ONLY = "speed only"  # in the label of rows that were measured with random weights
LIMITS = ("share of", "read bandwidth", "GFLOP")  # in the names of notes on what the machine could do
Source = tuple[str, Mapping]  # the command that wrote results, and these


@dataclass(frozen=True)
class Entry:
    """A notebook of the catalogue; sources: what was measured of it, its own results (`live`) among them."""

    about: About
    title: str
    live: Mapping
    sources: Sequence[Source]
    passes: bool

    @property
    def page(self) -> str:
        return f"notebooks/{self.about.case}/{self.about.case}.ipynb"

    def picture(self, width: int) -> str:
        """The thumbnail, which links to the notebook."""
        thumbnail = self.about.thumbnail
        source = f"notebooks/{self.about.case}/{thumbnail.file}"
        alt = html.escape(thumbnail.alt)
        return f'<a href="{self.page}"><img src="{source}" width="{width}" alt="{alt}"></a>'


def strip(entries: Iterable[Entry]) -> str:
    """The thumbnails of all notebooks in one line."""
    return "\n".join(entry.picture(92) for entry in entries)


def catalogue(entries: Iterable[Entry]) -> str:
    """A line for each notebook. Raises ValueError when an about.toml names a number that no results have."""
    rows = []
    for entry in entries:
        fails = "" if entry.passes else "\n**FAILS its checks**"
        title = f"[{entry.title}]({entry.page}){fails}\n{entry.about.summary}"
        quality = "\n".join([_number(entry), *_below_goal(entry)])
        needs = f"{entry.about.level}\n{_needs(entry.live)}"
        rows.append([entry.picture(160), title, needs, quality, _ratio(entry)])
    return Table(CATALOGUE, rows).markdown()


def released(entries: Iterable[Entry]) -> str:
    """What has and has not been run with the authors' weights, a line for each notebook."""
    header = ["Notebook", "Released weights", "Run with them here", "Tested without them"]
    lines = []
    for entry in entries:
        weights = entry.about.released
        lines.append([f"[{entry.title}]({entry.page})", weights.weights, weights.run, weights.tested])
    return Table(header, lines).markdown()


def pythons(tried: Mapping[str, Mapping]) -> str:
    """The front page's table of systems and Pythons, with a line for each system that nobody has tried.

    tried: what `make matrix` wrote, or nothing.
    """
    found = [(system, python, one) for system, own in tried.items() for python, one in own.items()]
    names = list(dict.fromkeys(name for *_, one in found for name in one["steps"]))
    lines = [
        [system, python, *(_step(one["steps"].get(name)) for name in names), one["date"]]
        for system, python, one in found
    ]
    lines += [[one.title, "untried"] for one in SYSTEMS.values() if one.title not in tried]
    return Table(["System", "Python", *names, *(["Tried on"] if found else [])], lines).markdown()


def _step(outcome: Mapping | None) -> str:
    """What came of a step of the matrix; of tests, with their numbers."""
    if outcome is None:
        return "–"
    counts = re.match(r"(?:\d+ \w+, )*\d+ (?:passed|failed)(?:, \d+ \w+)*", outcome["last line"])
    return ("passes" if outcome["passed"] else "**fails**") + (f": {counts[0]}" if counts else "")


def quality(sources: Sequence[Source], metrics: Collection[str]) -> str:
    """A README's table of some metrics, from the first of the sources that has them all; all metrics if none is named.

    Raises ValueError for metrics that no source has.
    """
    for command, results in sources:
        rows = [row for row in results["quality"] if not metrics or row["metric"] in metrics]
        if rows and {row["metric"] for row in rows} >= set(metrics):
            return f"{measured_on(command, results)}\n\n{compare.show(rows).markdown()}"
    raise ValueError(f"no results have the metrics {', '.join(metrics) or 'of quality'}")


def speed(sources: Sequence[Source], workloads: Collection[str]) -> str:
    """A README's table of some workloads: the fastest PyTorch and the fastest OpenVINO, from each source that has them.

    Below it, folded, are the limits of the machine that were measured in the same run, and the shares reached. Raises
    ValueError for workloads that no source has.
    """
    parts, missing = [], set(workloads)
    for command, results in sources:
        rows = [row for row in results["speed"] if not workloads or row["workload"] in workloads]
        missing -= {row["workload"] for row in rows}
        if (table := compare.show(rows)).rows:
            parts += [measured_on(command, results), table.markdown(), *_limits(results)]
    if missing or not parts:
        raise ValueError(f"no results have the workloads {', '.join(sorted(missing)) or 'of speed'}")
    return "\n\n".join(parts)


def _limits(results: Mapping) -> list[str]:
    """A folded table of the machine's limits, if results have some."""
    notes = {name: value for name, value in results.get("notes", {}).items() if any(limit in name for limit in LIMITS)}
    lines = [[name, number(value)] for name, value in notes.items()]
    return [Table(["Measured in the same run", ""], lines, folded="Limits of the machine").markdown()] if lines else []


def needs(sources: Sequence[Source], _: Collection[str] = ()) -> str:
    """The minutes and the memory that running the notebook took. Raises ValueError when no source has them."""
    for command, results in sources:
        if "needs" in results:
            took = _needs(results).replace(",", " and")
            return f"{measured_on(command, results)} {took} of memory, with converted models in the cache."
    raise ValueError("no results have the minutes and the memory, which `make run` measures")


def arm(results: Mapping, conversions: Sequence[str]) -> str:
    """A README's table of some conversions on an emulated ARM processor; results: what `make arm` wrote, or nothing."""
    lines, tried = [], False
    for name in conversions:
        models = {model: row for model, row in results.get("models", {}).items() if model.partition("/")[0] == name}
        tried |= bool(models)
        lines.append([name, *(_agreement(models, precision) for precision in ("f32", "f16"))])
    table = Table(["ARM CPU", "f32", "f16"], lines).markdown()
    if not tried:
        return f"Untried on ARM.\n\n{table}"
    return (
        f"`make arm` compared outputs with those of x86 in f32, under emulation ({results['emulator']}, OpenVINO "
        f"{results['openvino']}): correctness only, no real ARM processor was tried. Differences are relative to the "
        "largest number of an output. Without a hint, OpenVINO computes in f16 on ARM processors that have FP16 "
        f"arithmetic.\n\n{table}"
    )


def mandarin(results: Mapping) -> str:
    """A README's table of the readers of Mandarin: the syllables of the test half that each reads right, by class.

    results: what `tests.utils.speech.mandarin.scoring` wrote, or nothing.
    """
    if not results:
        return "Not measured yet: `python -m tests.utils.speech.mandarin.scoring` writes these numbers."
    readers = {name: halves["test"] for name, halves in results["readers"].items()}
    first = next(iter(readers.values()))
    counts = {kind: [score[kind] for score in readers.values()] for kind in first}
    counts["all"] = [[sum(column) for column in zip(*score.values(), strict=True)] for score in readers.values()]
    lines = [
        [kind, number(pairs[0][1]), *(f"{100 * right / total:.1f} %" for right, total in pairs)]
        for kind, pairs in counts.items()
    ]
    return f"{results['measured']}\n\n{Table(['Class', 'Syllables', *readers], lines).markdown()}"


def _agreement(models: Mapping[str, Mapping], precision: str) -> str:
    """How the models of a conversion compute at a precision: how many agree, and a line for each that does not."""
    if not models:
        return "untried"
    rows = {model.partition("/")[2]: row[precision] for model, row in models.items()}
    gaps = [row["difference"] for row in rows.values() if row["result"] == "agrees"]
    lines = []
    if gaps:
        count = f"{len(gaps)} of {len(rows)} agree" if len(rows) > 1 else "agrees"
        lines.append(f"{count} within {number(max(*gaps, 0.00001), 2)}")
    for model, row in rows.items():
        if row["result"] == "differs":
            lines.append(f"**{model} differs** by {number(row['difference'], 2)}")
        elif row["result"] == "does not run":
            lines.append(f"**{model} does not run**: {row['error']}")
        elif row["result"] == "untried":
            lines.append(f"{model} untried: {row['error']}")
    return "\n".join(lines)


def results_page(title: str, sources: Sequence[Source]) -> str:
    """RESULTS.md: the complete tables of all sources."""
    parts = [f"# Results: {title}", "`python -m utils.report` generates this page from the files in `results/`."]
    for name, table in (("quality", compare.show), ("parity", _parity_table), ("speed", compare.timings)):
        for command, results in sources:
            if rows := results[name]:
                parts += [f"## {name.capitalize()}", measured_on(command, results, True), table(rows).markdown()]
                if name == "speed" and results.get("notes"):
                    notes = (f"* {key}: {number(value, 4)}" for key, value in results["notes"].items())
                    parts.append("\n".join(notes))
    return "\n\n".join(_once(parts)) + "\n"


def measured_on(command: str, results: Mapping, extensions: bool = False) -> str:
    """A sentence before a table. extensions: whether it lists those of the processor, such as AVX-512."""
    day = f" on {results['date']}" if "date" in results else ""
    name, colon, _ = results["cpu"].partition(":")  # "name (family 6, model 167: AVX2, AVX-512)"
    processor = f"{name})" if colon and not extensions else results["cpu"]
    return (
        f"Measured{day} by `{command}` with model {results['model']} on {results['device']} "
        f"({processor}, {results['cores']} cores, OpenVINO {results['versions'].get('openvino', '?')}):"
    )


def _once(parts: Sequence[str]) -> list[str]:
    """Without the headings that are above already."""
    return [part for i, part in enumerate(parts) if not (part.startswith("## ") and part in parts[:i])]


def _number(entry: Entry) -> str:
    """The number that about.toml names, in its text; where several results have it, the worse."""
    wanted = entry.about.number
    rows = [row for row in _measured(entry) if (row["metric"], row["precision"]) == (wanted.metric, wanted.precision)]
    if not rows:
        where = f"notebooks/{entry.about.case}/about.toml"
        raise ValueError(f"no results have the number of {where}: {wanted.metric!r} at {wanted.precision!r}")
    row = (min if rows[0]["better"] == "higher" else max)(rows, key=lambda row: row["value"])
    fields = {
        "value": number(row["value"]),
        "pytorch": number(row["reference"]),
        "percent": f"{number(100 * row['value'])} %",
        "complement": f"{number(100 - 100 * row['value'])} %",
        "count": number(round(row["value"] * row.get("of", 0))),
        "of": number(row.get("of")),
    }
    try:
        return wanted.text.format(**fields)
    except (LookupError, ValueError) as error:
        where = f"notebooks/{entry.about.case}/about.toml"
        raise ValueError(f"the text of the number in {where} is {wanted.text!r}: use {', '.join(fields)}") from error


def _below_goal(entry: Entry) -> list[str]:
    """A line with the metrics that pass their thresholds and miss their goals, if there are any."""
    missed = list(dict.fromkeys(row["metric"] for row in _measured(entry) if compare.below_goal(row)))
    return [f"**below goal**: {'; '.join(missed)}"] if missed else []


def _needs(results: Mapping) -> str:
    """The minutes and the memory that `make run` measured."""
    if needs := results.get("needs"):
        return f"{number(max(1, round(needs['minutes'])))} min, {number(needs['memory_gb'], 2)} GB"
    return "–"


def _ratio(entry: Entry) -> str:
    """How many times the speed of the fastest PyTorch the fastest OpenVINO has, at a precision that passes the quality
    table, in the workload of the notebook that takes PyTorch longest. Where `make bench` measured it, too, the worse.

    Smaller parts can have larger ratios, but matter less.
    """
    judged = [(row["precision"], compare.passes(row)) for row in _measured(entry)]
    good = {precision for precision, ok in judged if ok} - {precision for precision, ok in judged if ok is False}
    measured = [_fastest_of_each(results["speed"], good) for _, results in entry.sources]
    workloads = _fastest_of_each(entry.live["speed"], good) or next(filter(None, measured), {})
    if not workloads:
        return "–"
    longest = max(workloads, key=lambda workload: workloads[workload][0]["median_ms"])
    pairs = [pairs[longest] for pairs in measured if longest in pairs]
    peer, best = min(pairs, key=lambda pair: compare.ratio(pair[1], pair[0]))
    name = "PyTorch" if peer["runtime"].startswith("torch") else peer["runtime"]
    return f"{number(compare.ratio(best, peer), 2)}x {name} ({best['precision']}, {longest})"


def _fastest_of_each(rows: Iterable[Mapping], precisions: Collection[str]) -> dict[str, tuple[Mapping, Mapping]]:
    """Workload -> its fastest row of PyTorch and that of OpenVINO at one of the precisions, both with real weights."""
    rows = [row for row in rows if SPEED_ONLY not in row.get("label", "")]
    pairs = {}
    for workload in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == workload]
        ours = [row for row in own if compare.is_ours(row) and row["precision"] in precisions]
        torch = [row for row in own if compare.is_baseline(row)]
        if ours and torch:
            pairs[workload] = (compare.fastest(torch), compare.fastest(ours))
    return pairs


def _measured(entry: Entry) -> list[Mapping]:
    """The quality rows of all sources, without those of negative controls."""
    return [row for _, results in entry.sources for row in results["quality"] if "controls" not in row]


def _parity_table(rows: Sequence[Mapping]) -> Table:
    header = ["Stage", "Largest difference", "Cosine", "Tolerance", ""]
    verdict = {True: "passes", False: "**FAILS**"}
    lines = [
        [
            row["stage"],
            number(row["max_abs_diff"]),
            f"{row['cosine']:.6f}",
            number(row["tolerance"]),
            verdict[compare.passes(row)],
        ]
        for row in rows
    ]
    return Table(header, lines)
