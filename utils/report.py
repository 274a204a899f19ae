"""Results of a use case as JSON (checked against the schema, `pass` recomputed), and the tables of README files.

`python -m utils.report` rewrites what stands between `<!-- results:NAME -->` and `<!-- /results -->` in README.md
(NAME: open, pythons, strip, catalogue or released) and in notebooks/*/README.md (NAME: needs, devices or mandarin; or
quality or speed, then the metrics or workloads as a JSON list; or arm, then the conversions), and writes
notebooks/*/RESULTS.md and the notebook for Colab. With `--check` it only lists the files that are stale.
"""

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date as calendar
from importlib import metadata
from pathlib import Path

from utils import about, bench, compare, devices, links, readmes
from utils.files import replaced
from utils.paths import ROOT
from utils.setup import matrix

SCHEMA = Path(__file__).with_name("results.schema.json")
BENCH = ROOT / "results" / "bench"  # where `make bench` writes speed
ARM = BENCH / "emulated-arm.json"  # where `make arm` writes how models compute on an emulated ARM processor
EXAMINATIONS = ROOT / "results" / "examination"  # where it writes quality that takes too long for a notebook
MANDARIN = EXAMINATIONS / "mandarin.json"  # how many syllables the readers of Mandarin read right
PACKAGES = (
    "openvino",
    "openvino-genai",
    "nncf",
    "torch",
    "transformers",
    "optimum-intel",
    "onnxruntime",
    "numpy",
)
FRONT_PAGE = {"strip": readmes.strip, "catalogue": readmes.catalogue, "released": readmes.released}
NOTEBOOK_PAGE = {"needs": readmes.needs, "quality": readmes.quality, "speed": readmes.speed}
MARKED = re.compile(r"<!-- results:(\w+)( [^\n]*?)?? -->(.*?)<!-- /results -->", re.DOTALL)


class InvalidResults(ValueError):
    """Results that break the schema, contradict themselves, or prove nothing."""


def save(
    case: str,
    *,
    model: str,
    device: str,
    parity: Iterable[Mapping],
    quality: Iterable[Mapping],
    speed: Iterable[Mapping],
    notes: Mapping | None = None,
    folder: str | Path | None = None,
    part: str | None = None,
    date: str | None = None,
) -> Path:
    """Write `<folder>/<case>.json` or `<case>-<part>.json` and return its path; the folder is RESULTS_DIR, or `results`
    in the repository.

    `notes` maps names to numbers or short texts (limits of the machine, background load), shown below the
    speed table. `date` is YYYY-MM-DD, for benchmarks. Each row's `pass` is computed here. Raises
    InvalidResults, and then leaves an earlier file as it was.
    """
    machine = bench.machine()
    results = {
        "case": case,
        "model": model,
        "device": device,
        "cpu": machine["cpu"],
        "cores": machine["cores"],
        "versions": _versions(),
        **({"date": date} if date else {}),
        **({"notes": dict(notes)} if notes else {}),
        "parity": [_judged(row) for row in parity],
        "quality": [_judged(row) for row in quality],
        "speed": [dict(row) for row in speed],
    }
    results = json.loads(json.dumps(results, default=_plain))
    validate(results, case)
    path = Path(folder or os.environ.get("RESULTS_DIR") or ROOT / "results") / _file(case, part)
    _write(path, json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def save_bench(case: str, speed: Iterable[Mapping], notes: Mapping) -> Path:
    """Write what `make bench` measured today on the CPU to BENCH; prints and returns the path.

    The notes that `amend` wrote there before stay, unless `notes` has some with the same prefix.
    """
    day = calendar.today().isoformat()
    notes = {**_amended(BENCH / f"{case}.json", notes), **notes}
    measured = {"parity": [], "quality": [], "speed": speed, "notes": notes}
    return _announced(save(case, model="tiny", device="CPU", **measured, folder=BENCH, date=day))


def save_examination(case: str, model: str, quality: Iterable[Mapping], part: str | None = None) -> Path:
    """Write the quality rows that were measured today on the CPU to EXAMINATIONS; prints and returns the path.

    part: the name of rows that are measured by themselves, and have a file of their own. Raises AssertionError, after
    writing, when a row fails.
    """
    quality, day = list(quality), calendar.today().isoformat()
    measured = {"parity": [], "quality": quality, "speed": []}
    path = _announced(save(case, model=model, device="CPU", **measured, folder=EXAMINATIONS, part=part, date=day))
    compare.check(quality)
    return path


def examination(case: str, part: str | None = None) -> dict:
    """What `save_examination` wrote last. Raises InvalidResults when it cannot be read."""
    return load(EXAMINATIONS / _file(case, part))


def _file(case: str, part: str | None) -> str:
    return f"{case}-{part}.json" if part else f"{case}.json"


def amend(path: str | Path, prefix: str, notes: Mapping) -> Path:
    """Replace the notes that begin with `prefix` in a results file by `notes`; prints and returns the path.

    The notes come from a measurement of their own, whose date and machine become the notes `<prefix>on` and
    `<prefix>processor`; everything else stays as it is. Raises InvalidResults, and then leaves the file as it was.
    """
    path, results = Path(path), load(path)
    others = {name: value for name, value in results.get("notes", {}).items() if not name.startswith(prefix)}
    where = {f"{prefix}on": calendar.today().isoformat(), f"{prefix}processor": bench.machine()["cpu"]}
    results["notes"] = others | json.loads(json.dumps(dict(notes), default=_plain)) | where
    validate(results, results["case"])
    _write(path, json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return _announced(path)


def _amended(path: Path, new: Mapping) -> dict:
    """The notes of a results file that `amend` wrote, but for those whose prefix begins one of `new`."""
    with suppress(InvalidResults):
        notes = load(path).get("notes", {})
        prefixes = [name.removesuffix("on") for name in notes if f"{name.removesuffix('on')}processor" in notes]
        kept = [prefix for prefix in prefixes if not any(name.startswith(prefix) for name in new)]
        return {name: value for name, value in notes.items() if name.startswith(tuple(kept))}
    return {}


def add_needs(path: str | Path, minutes: float, memory_gb: float) -> None:
    """Add to a results file what running its notebook took: the time, and the most memory of all its processes."""
    results = load(path) | {"needs": {"minutes": round(minutes, 2), "memory_gb": round(memory_gb, 2)}}
    validate(results, results["case"])
    _write(Path(path), json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _announced(path: Path) -> Path:
    print(f"Written to {os.path.relpath(path, ROOT)}.")
    return path


def load(path: str | Path) -> dict:
    """Read and check a results file. Raises InvalidResults for anything `save` would not have written."""
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidResults(f"{path} cannot be read as results: {error}. Run the notebook again.") from error
    validate(results, str(path))
    return results


def validate(results: dict, name: str) -> None:
    """Raise InvalidResults unless the schema holds, every number is finite, each stored `pass` is the
    computed one, and each thresholded metric has a control with the threshold between control and
    reference."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    if error := jsonschema.exceptions.best_match(validator.iter_errors(results)):
        raise InvalidResults(f"Results of {name} break the schema at {error.json_path}: {error.message}.")
    if where := _not_finite(results, "$"):
        raise InvalidResults(f"Results of {name} hold NaN or an infinite number at {where}.")
    for row in results["parity"] + results["quality"]:
        if row["pass"] != compare.passes(row):
            raise InvalidResults(
                f"Results of {name} store pass={row['pass']}, but {compare.describe(row)}. "
                "Write results with report.save, not by hand."
            )
    _check_controls(results["quality"], name)


def judge(results: Mapping) -> tuple[bool, list[str]]:
    """Whether results pass, and a message for each failure. Results without a parity row or a threshold fail, too."""
    failing = [
        compare.describe(row) for row in [*results["parity"], *results["quality"]] if compare.passes(row) is False
    ]
    if not results["parity"]:
        failing.append("the parity table is empty: nothing was compared with PyTorch")
    if not any(row["threshold"] is not None and "controls" not in row for row in results["quality"]):
        failing.append("the quality table has no row with a threshold: nothing could fail")
    return not failing, [f"{results['case']}: {failure}." for failure in failing]


def regenerate(root: Path = ROOT, write: bool = True) -> list[Path]:
    """Bring all generated tables up to date (or only look); returns the files that were stale."""
    pages: dict[Path, str] = {}
    for readme in [root / "README.md", *sorted(root.glob("notebooks/*/README.md"))]:
        if readme.is_file():
            before = readme.read_text(encoding="utf-8")
            if len(MARKED.findall(before)) != before.count("<!-- results:"):
                raise InvalidResults(f"{readme} has a '<!-- results:NAME -->' without its '<!-- /results -->'. Add it.")
            pages[readme] = MARKED.sub(lambda match, at=readme: _generated(match, at, root), before)
        if readme.parent != root and (sources := _sources(readme.parent.name, root / "results")):
            title = _title(readme.with_name(f"{readme.parent.name}.ipynb"))
            pages[readme.with_name("RESULTS.md")] = readmes.results_page(title, sources)
    if (root / links.COLAB).parent.is_dir():
        pages[root / links.COLAB] = links.colab(links.repository(root))
    stale = [page for page, text in pages.items() if not page.is_file() or page.read_text(encoding="utf-8") != text]
    if write:
        for page in stale:
            _write(page, pages[page])
    return stale


def on_arm(root: Path = ROOT) -> set[str]:
    """The names of conversions and notebooks whose models READMEs show on an emulated ARM processor."""
    texts = (readme.read_text(encoding="utf-8") for readme in root.glob("notebooks/*/README.md"))
    marks = (match for text in texts for match in MARKED.finditer(text))
    return {name for match in marks if match[1] == "arm" for name in json.loads(match[2] or "[]")}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m utils.report", description="Tables of the README files.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a table is stale")
    check = parser.parse_args(arguments).check
    try:
        stale = regenerate(write=not check)
    except InvalidResults as error:
        print(error, file=sys.stderr)
        return 1
    for readme in stale:
        print(f"{readme.relative_to(ROOT)} {'is stale: run python -m utils.report' if check else 'rewritten'}")
    return int(check and bool(stale))


def _judged(row: Mapping) -> dict:
    try:
        return {**row, "pass": compare.passes(row)}
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidResults(f"The row {dict(row)} cannot be judged ({error!r}). Make rows with compare.") from error


def _check_controls(quality: list[dict], name: str) -> None:
    measured = [row for row in quality if "controls" not in row]
    controls = [row for row in quality if "controls" in row]
    for control in controls:
        held = [row for row in measured if row["metric"] == control["controls"]]
        if not any((row["threshold"], row["better"]) == (control["threshold"], control["better"]) for row in held):
            raise InvalidResults(
                f"Results of {name}: the control '{control['control']}' has threshold "
                f"{control['threshold']}, which no row of {control['controls']!r} has. "
                "Give it the threshold of the metric it controls."
            )
    for row in measured:
        if row["threshold"] is None:
            continue
        which = f"{row['threshold']:.4g} of {row['metric']} at {row['precision']}"
        where = f"Results of {name}: the threshold {which}"
        if row["reference"] is None or not compare.passes({**row, "value": row["reference"]}):
            raise InvalidResults(f"{where} is out of reach of the reference {row['reference']}. Choose one it reaches.")
        missing = [control["value"] for control in controls if control["controls"] == row["metric"]]
        if not any(compare.passes({**row, "value": value}) is False for value in missing):
            raise InvalidResults(
                f"{where} has no control that fails it (controls: {missing or 'none'}). "
                "Add a negative control, or choose a threshold between it and the reference."
            )


def _generated(match: re.Match, readme: Path, root: Path) -> str:
    name, listed = match[1], (match[2] or "").strip()
    try:
        wanted = json.loads(listed or "[]")
        if readme.parent == root and name in FRONT_PAGE:
            entries = _entries(root)
            text = FRONT_PAGE[name](entries) if entries else "Nothing measured yet: `make run CASE=...` writes results."
        elif readme.parent == root and name == "open":
            text = links.front_page(links.repository(root))
        elif readme.parent == root and name == "pythons":
            text = readmes.pythons(_stored(root / "results" / matrix.RESULTS.name))
        elif readme.parent != root and name == "devices":
            text = _devices(readme.parent.name, root / "results")
        elif readme.parent != root and name == "arm":
            text = readmes.arm(_stored(root / "results" / BENCH.name / ARM.name), wanted)
        elif readme.parent != root and name == "mandarin":
            text = readmes.mandarin(_stored(root / "results" / EXAMINATIONS.name / MANDARIN.name))
        elif readme.parent != root and name in NOTEBOOK_PAGE:
            sources, case = _sources(readme.parent.name, root / "results"), readme.parent.name
            missing = f"Not measured yet: `make run CASE={case}` writes these numbers."
            text = NOTEBOOK_PAGE[name](sources, wanted) if sources else missing
        else:
            ours = ", ".join(["open", "pythons", *FRONT_PAGE])
            theirs = ", ".join([*NOTEBOOK_PAGE, "devices", "arm", "mandarin"])
            raise ValueError(f"there are {ours} in README.md, {theirs} in those of the notebooks")
    except ValueError as error:
        raise InvalidResults(f"{readme} asks for results:{name} {listed}, but {str(error).rstrip('.')}.") from error
    return f"<!-- results:{name}{listed and ' '}{listed} -->\n{text}\n<!-- /results -->"


def _devices(case: str, folder: Path) -> str:
    """The table of the devices that a notebook was run on, its own results among them."""
    live, passed = None, False
    if (path := folder / f"{case}.json").is_file():
        live = load(path)
        quality = [row for _, results in _sources(case, folder) for row in results["quality"]]
        passed = judge({**live, "quality": quality})[0]
    return devices.table(case, live, passed, devices.load(folder / devices.FOLDER.name / f"{case}.json"))


def _entries(root: Path) -> list[readmes.Entry]:
    """The notebooks that were measured, in learning order."""
    entries = []
    for notebook in sorted(root.glob("notebooks/*/*.ipynb")):
        case, path = notebook.parent.name, root / "results" / f"{notebook.stem}.json"
        if notebook.stem == case and path.is_file():
            live, sources = load(path), _sources(case, root / "results")
            quality = [row for _, results in sources for row in results["quality"]]
            passes = judge({**live, "quality": quality})[0]
            entries.append(readmes.Entry(about.load(notebook.parent), _title(notebook), live, sources, passes))
    return sorted(entries, key=lambda entry: (entry.about.order, entry.about.case))


def _sources(case: str, folder: Path) -> list[readmes.Source]:
    """What was measured of a notebook: by an examination, the notebook itself and `make bench`, as far as it was."""
    name = _file(case, None)
    parts = {file: "bench" for file in sorted((folder / EXAMINATIONS.name).glob(_file(case, "*")))}
    files = {
        folder / EXAMINATIONS.name / name: "bench",
        **parts,
        folder / name: "run",
        folder / BENCH.name / name: "bench",
    }
    return [(f"make {command} CASE={case}", load(path)) for path, command in files.items() if path.is_file()]


def _stored(path: Path) -> dict:
    """What a command other than a notebook's wrote last, or nothing."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _title(notebook: Path) -> str:
    import nbformat

    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "markdown" and (heading := re.search(r"^# (.+)$", cell.source, re.MULTILINE)):
            return heading[1].strip()
    raise InvalidResults(f"{notebook} has no first-level heading. Give it one: it is the title in the catalogue.")


def _not_finite(value, where: str) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else where
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((found for key, item in items if (found := _not_finite(item, f"{where}.{key}"))), None)


def _plain(value):
    """numpy scalars as Python numbers."""
    if hasattr(value, "item"):
        return value.item()
    raise InvalidResults(
        f"Results hold {value!r} of type {type(value).__name__}: only numbers and texts can be stored."
    )


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):  # what is not installed was not used
            versions[package] = metadata.version(package)
    return versions


def _write(path: Path, text: str) -> None:
    """Write a text whose line ends are the same on every system, so that --check agrees."""
    with replaced(path) as partial:
        partial.write_bytes(text.encode())


if __name__ == "__main__":
    sys.exit(main())
