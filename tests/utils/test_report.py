"""Results are checked when written and when read; the tables made from them are stable."""

import json
import re
import shutil

import nbformat
import numpy as np
import pytest

from utils import bench, compare, report

PARITY = [compare.parity("decoder | all layers", [1.0, 2.0], [1.0, 2.00001], 1e-4)]
QUALITY = [
    compare.quality("perplexity", "FP16", 12.0, 12.0, 12.5, "lower"),
    compare.quality("perplexity", "INT4", 13.25, 12.0, 14.0, "lower"),
    compare.control("perplexity", "zero points ignored", 5432.1, 14.0, "lower"),
    compare.quality("agreement", "INT4", 0.875, 1.0, None, "higher"),
]
FAST, SLOW = bench.Timing.of([10.0]), bench.Timing.of([31.26])
SPEED = [
    bench.row("openvino", "INT4", "prefill 512", FAST, torch=SLOW, amount=512, unit="tokens/s", model_mb=83.3),
    bench.row("torch eager", "FP32", "prefill 512", SLOW),
]

ABOUT = """
order = 2
level = "beginner"
summary = "Learn with a toy."
thumbnail = { file = "thumbnail.jpg", alt = "A <toy>" }
number = { metric = "perplexity", precision = "INT4", text = "perplexity {value} at 4 bits ({pytorch} in PyTorch)" }
released = { weights = "Toy-7B", run = "nothing", tested = "its format" }
"""


def save(folder, **changes):
    tables = {"parity": PARITY, "quality": QUALITY, "speed": SPEED, "model": "tiny", "device": "CPU"}
    return report.save("toy", **(tables | changes), folder=folder)


def test_saved_results_are_complete_and_load(tmp_path):
    path = save(tmp_path / "new", notes={"read bandwidth GB/s": 38.25})
    assert path == tmp_path / "new" / "toy.json"
    results = report.load(path)
    assert (results["case"], results["model"], results["device"]) == ("toy", "tiny", "CPU")
    assert results["cores"] >= 1 and results["cpu"] and results["versions"]["numpy"] == np.__version__
    assert results["quality"][0]["pass"] is True and results["quality"][3]["pass"] is None
    assert results["speed"][0]["ratio_to_torch"] == pytest.approx(3.126)
    assert "date" not in results
    assert report.load(save(tmp_path, date="2026-11-21"))["date"] == "2026-11-21"
    assert report.judge(results) == (True, [])


def test_the_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "elsewhere"))
    assert save(None) == tmp_path / "elsewhere" / "toy.json"


def test_pass_is_computed_not_believed(tmp_path):
    lie = compare.quality("perplexity", "INT4", 99.0, 12.0, 14.0, "lower") | {"pass": True}
    path = save(tmp_path, quality=[QUALITY[0], lie, QUALITY[2]])
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored["quality"][1]["pass"] is False
    stored["quality"][1]["pass"] = True
    path.write_text(json.dumps(stored), encoding="utf-8")
    with pytest.raises(report.InvalidResults, match="store pass=True, but perplexity at INT4 is 99"):
        report.load(path)


def test_the_verdict_names_what_fails(tmp_path):
    quality = [*QUALITY[:2], QUALITY[2], compare.control("perplexity", "neighbour", 13.0, 14.0, "lower")]
    results = report.load(save(tmp_path, quality=quality))
    assert report.judge(results) == (
        False,
        [
            "toy: the control 'neighbour' of perplexity reaches 13, but must not reach the threshold 14 "
            "(lower is better)."
        ],
    )


def test_a_verdict_needs_evidence(tmp_path):
    results = report.load(save(tmp_path, parity=[], quality=QUALITY[3:]))
    passed, failing = report.judge(results)
    assert not passed and len(failing) == 2
    assert "parity table is empty" in failing[0] and "no row with a threshold" in failing[1]


def changed(row, **values):
    return {key: value for key, value in (row | values).items() if value != "absent"}


@pytest.mark.parametrize(
    ("tables", "fault"),
    [
        ({"parity": [changed(PARITY[0], tolerance="small")]}, "'tolerance': 'small'.* cannot be judged"),
        ({"parity": [changed(PARITY[0], cosine="absent")]}, "'cosine' is a required property"),
        ({"parity": [changed(PARITY[0], cosine=1.5)]}, r"\$.parity\[0\].cosine: 1.5"),
        ({"speed": [changed(SPEED[0], runtime=3)]}, r"speed\[0\].runtime"),
        ({"speed": [changed(SPEED[0], colour="red")]}, "colour"),
        ({"speed": [changed(SPEED[0], median_ms=0)]}, "median_ms"),
        ({"speed": [changed(SPEED[0], median_ms=float("nan"))]}, "NaN or an infinite number at .*median_ms"),
        ({"notes": {"bandwidth": float("inf")}}, "NaN or an infinite number at .*bandwidth"),
        ({"notes": {"bandwidth": object()}}, "type object"),
        ({"date": "yesterday"}, "date"),
        ({"quality": QUALITY[:2]}, "12.5 of perplexity at FP16 has no control that fails it"),
        (
            {"quality": [QUALITY[0], compare.control("perplexity", "mild", 12.4, 12.5, "lower")]},
            r"no control that fails it \(controls: \[12.4\]\)",
        ),
        (
            {"quality": [QUALITY[1], QUALITY[2] | {"threshold": 15.0}]},
            "'zero points ignored' has threshold 15.0, which no row of 'perplexity' has",
        ),
        (
            {"quality": [QUALITY[1] | {"reference": 14.5}, QUALITY[2]]},
            "threshold 14 of perplexity at INT4 is out of reach of the reference 14.5",
        ),
        ({"quality": [QUALITY[1] | {"reference": None}, QUALITY[2]]}, "out of reach of the reference None"),
        ({"quality": [QUALITY[1], changed(QUALITY[2], control="absent")]}, "'control'"),
    ],
)
def test_refused_results_leave_the_earlier_file(tmp_path, tables, fault):
    before = save(tmp_path).read_bytes()
    with pytest.raises(report.InvalidResults, match=fault):
        save(tmp_path, **tables)
    assert [path.name for path in tmp_path.iterdir()] == ["toy.json"]
    assert (tmp_path / "toy.json").read_bytes() == before


def test_a_benchmark_is_dated_and_says_where_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "BENCH", tmp_path / "bench")
    path = report.save_bench("toy", SPEED, {"bandwidth": 1.5})
    results = report.load(path)
    assert path == tmp_path / "bench" / "toy.json" and results["date"] > "2026-01-02"
    assert (results["model"], results["device"], results["notes"]) == ("tiny", "CPU", {"bandwidth": 1.5})
    assert results["speed"] == json.loads(json.dumps(SPEED)) and "toy.json" in capsys.readouterr().out


def test_an_examination_is_dated_and_must_pass(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "EXAMINATIONS", tmp_path / "examination")
    path = report.save_examination("toy", "tiny", QUALITY)
    results = report.examination("toy")
    assert path == tmp_path / "examination/toy.json" and results["date"] > "2026-01-02"
    assert "toy.json" in capsys.readouterr().out
    assert (results["model"], results["quality"]) == ("tiny", json.loads(json.dumps(QUALITY)))
    worse = compare.quality("perplexity", "INT4", 15.0, 12.0, 14.0, "lower")
    with pytest.raises(AssertionError, match="perplexity at INT4 is 15"):
        report.save_examination("toy", "tiny", [*QUALITY, worse])
    assert len(report.examination("toy")["quality"]) == len(QUALITY) + 1


def test_a_part_of_an_examination_is_a_source_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "EXAMINATIONS", tmp_path / "examination")
    report.save_examination("toy", "tiny", QUALITY)
    path = report.save_examination("toy", "tiny", QUALITY[:3], part="answers")
    assert path.name == "toy-answers.json" and len(report.examination("toy", "answers")["quality"]) == 3
    sources = report._sources("toy", tmp_path)
    assert [len(results["quality"]) for _, results in sources] == [len(QUALITY), 3]
    assert {command for command, _ in sources} == {"make bench CASE=toy"}


def test_notes_measured_later_join_the_others(tmp_path):
    path = save(tmp_path, date="2026-01-02", notes={"bandwidth": 1.5, "soak, pass": False, "soak, left": 3})
    before = report.load(path)
    assert report.amend(path, "soak, ", {"soak, pass": True, "soak, MB": np.float32(0.5)}) == path
    after = report.load(path)
    notes = after.pop("notes")
    assert after == {key: value for key, value in before.items() if key != "notes"}
    assert notes.pop("soak, on") > "2026-01-02" and notes.pop("soak, processor") == bench.machine()["cpu"]
    assert notes == {"bandwidth": 1.5, "soak, pass": True, "soak, MB": 0.5}


def test_a_later_benchmark_keeps_the_notes_that_joined_it(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "BENCH", tmp_path)
    path = report.save_bench("toy", SPEED, {"bandwidth": 1.5, "soak, MB": 3})
    for prefix in ("soak, ", "vectors: "):
        report.amend(path, prefix, {f"{prefix}MB": 4})
    report.save_bench("toy", SPEED, {"share": 0.5, "vectors: MB": 5})
    notes = report.load(path)["notes"]
    assert notes.pop("soak, on") and notes.pop("soak, processor")
    assert notes == {"soak, MB": 4, "share": 0.5, "vectors: MB": 5}


def test_notes_that_break_the_schema_leave_the_file(tmp_path):
    path = save(tmp_path, notes={"bandwidth": 1.5})
    earlier = path.read_bytes()
    with pytest.raises(report.InvalidResults):
        report.amend(path, "soak, ", {"soak, left": [1, 2]})
    assert path.read_bytes() == earlier


def test_numpy_numbers_are_stored_as_plain_ones(tmp_path):
    path = save(tmp_path, speed=[SPEED[0] | {"median_ms": np.float32(2.5), "peak_rss_mb": np.int64(7)}])
    assert '"median_ms": 2.5' in path.read_text(encoding="utf-8")


def test_unreadable_results(tmp_path):
    (tmp_path / "toy.json").write_text("{", encoding="utf-8")
    for name in ("toy.json", "missing.json"):
        with pytest.raises(report.InvalidResults, match=f"{name} cannot be read"):
            report.load(tmp_path / name)


@pytest.fixture
def collection(tmp_path):
    """A repository with one measured case, one that is not measured yet, and three README files."""
    for case in ("toy", "unmeasured"):
        folder = tmp_path / "notebooks" / case
        folder.mkdir(parents=True)
        cells = [
            nbformat.v4.new_code_cell("1"),
            nbformat.v4.new_markdown_cell("intro\n# A toy model\n## More"),
        ]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / f"{case}.ipynb")
        marks = {"quality": "quality", "one": 'quality ["agreement"]', "speed": "speed"}
        card = "\n".join(f"## {name}\n<!-- results:{mark} -->\nold\n<!-- /results -->" for name, mark in marks.items())
        (folder / "about.toml").write_text(ABOUT, encoding="utf-8")
        (folder / "thumbnail.jpg").touch()
        (folder / "README.md").write_text(f"# {case}\n{card}\nend\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("top\n<!-- results:catalogue --><!-- /results -->\nbottom\n", encoding="utf-8")
    save(tmp_path / "results", notes={"background load": 0.25})
    save(
        tmp_path / "results" / "bench",
        parity=[],
        quality=[],
        speed=[SPEED[0] | {"label": "speed only"}],
        date="2026-11-21",
    )
    return tmp_path


def front_page(collection, name: str = "catalogue") -> str:
    """What is generated into README.md for a marker."""
    (collection / "README.md").write_text(f"top\n<!-- results:{name} --><!-- /results -->\nbottom\n", encoding="utf-8")
    report.regenerate(collection)
    text = (collection / "README.md").read_text(encoding="utf-8")
    top, bottom = f"top\n<!-- results:{name} -->\n", "\n<!-- /results -->\nbottom\n"
    assert text.startswith(top) and text.endswith(bottom)
    return text.removeprefix(top).removesuffix(bottom)


PICTURE = (
    '<a href="notebooks/toy/toy.ipynb"><img src="notebooks/toy/thumbnail.jpg" width="{width}" alt="A &lt;toy&gt;"></a>'
)


def test_catalogue_row(collection):
    assert front_page(collection).splitlines() == [
        "| Preview | Notebook | Level, time, memory | Quality of `tiny` | Speed of `tiny` |",
        "| --- | --- | --- | --- | --- |",
        f"| {PICTURE.format(width=160)} | [A toy model](notebooks/toy/toy.ipynb)<br>Learn with a toy. | beginner<br>– "
        "| perplexity 13.2 at 4 bits (12 in PyTorch) | 3.1x PyTorch (INT4, prefill 512) |",
    ]


def test_the_strip_and_the_released_weights(collection):
    assert front_page(collection, "strip") == PICTURE.format(width=92)
    assert front_page(collection, "released").splitlines()[2:] == [
        "| [A toy model](notebooks/toy/toy.ipynb) | Toy-7B | nothing | its format |"
    ]


def test_the_systems_and_pythons_that_were_tried(collection):
    untried = [f"| {name} | untried |" for name in ("Linux on ARM", "macOS on Apple silicon", "Windows on x86-64")]
    assert front_page(collection, "pythons").splitlines()[2:] == ["| Linux on x86-64 | untried |", *untried]
    passed = {"passed": True, "seconds": 9, "last line": "env: ready"}
    tests = {"passed": False, "seconds": 9, "last line": "1 failed, 20 passed, 3 skipped in 8.04s"}
    pythons = {"3.11": {"date": "2026-11-20", "steps": {"set-up": passed, "tests": tests}},
               "3.12": {"date": "2026-11-21", "steps": {"set-up": passed | {"passed": False}}}}  # fmt: skip
    stored = json.dumps({"Linux on x86-64": pythons})
    (collection / "results" / "pythons.json").write_text(stored, encoding="utf-8")
    assert front_page(collection, "pythons").splitlines() == [
        "| System | Python | set-up | tests | Tried on |",
        "| --- | --- | --- | --- | --- |",
        "| Linux on x86-64 | 3.11 | passes | **fails**: 1 failed, 20 passed, 3 skipped | 2026-11-20 |",
        "| Linux on x86-64 | 3.12 | **fails** | – | 2026-11-21 |",
        *(f"{line}  |  |  |" for line in untried),
    ]


def test_the_catalogue_has_the_learning_order(collection):
    for case, order in (("first", 1), ("last", 3), ("equal", 2)):
        folder = collection / "notebooks" / case
        shutil.copytree(collection / "notebooks" / "toy", folder)
        (folder / "toy.ipynb").rename(folder / f"{case}.ipynb")
        (folder / "about.toml").write_text(ABOUT.replace("order = 2", f"order = {order}"), encoding="utf-8")
        shutil.copy(collection / "results" / "toy.json", collection / "results" / f"{case}.json")
    links = re.findall(r"\| \[A toy model\]\(notebooks/(\w+)/", front_page(collection))
    assert links == ["first", "equal", "toy", "last"]


def test_what_running_took_is_in_the_catalogue(collection):
    path = collection / "results" / "toy.json"
    before = report.load(path)
    report.add_needs(path, 2.504, 3.456)
    assert report.load(path) == before | {"needs": {"minutes": 2.5, "memory_gb": 3.46}}
    assert "| beginner<br>2 min, 3.5 GB |" in front_page(collection)
    report.add_needs(path, 0.1, 0.5)
    assert "| beginner<br>1 min, 0.5 GB |" in front_page(collection)
    written = path.read_bytes()
    with pytest.raises(report.InvalidResults, match=r"\$.needs.minutes"):
        report.add_needs(path, -1, 0.5)
    assert path.read_bytes() == written


@pytest.mark.parametrize(
    ("metric", "row", "text", "expected"),
    [
        ("agreement", {}, "{percent} agree, {complement} differ", "87.5 % agree, 12.5 % differ"),
        ("agreement", {"of": 48}, "{count} of {of}", "42 of 48"),
        ("agreement", {"goal": 0.9}, "{value}", "0.875"),  # without a threshold it can miss no goal
        ("perplexity", {"goal": 12.5}, "{value}", "13.2<br>**below goal**: perplexity"),
        ("perplexity", {"goal": 13.5}, "{value}", "13.2"),
    ],
)
def test_the_number_of_the_catalogue(collection, metric, row, text, expected):
    quality = [old | (row if (old["metric"], old["precision"]) == (metric, "INT4") else {}) for old in QUALITY]
    save(collection / "results", quality=quality)
    about = ABOUT.replace('metric = "perplexity"', f'metric = "{metric}"')
    about = about.replace("perplexity {value} at 4 bits ({pytorch} in PyTorch)", text)
    (collection / "notebooks" / "toy" / "about.toml").write_text(about, encoding="utf-8")
    assert f"| {expected} | 3.1x" in front_page(collection)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('precision = "INT4"', 'precision = "INT2"', "no results have the number of notebooks/toy/about.toml: 'perpl"),
        ("{value}", "{worth}", "the text of the number in notebooks/toy/about.toml is .*worth.*: use value, "),
        ("order = 2", "", "notebooks/toy/about.toml, .*'order' is a required property"),
    ],
)
def test_about_asks_for_what_is_not_there(collection, old, new, fault):
    (collection / "notebooks" / "toy" / "about.toml").write_text(ABOUT.replace(old, new), encoding="utf-8")
    with pytest.raises(report.InvalidResults, match=fault):
        front_page(collection)


def test_the_catalogue_has_the_worse_of_two_numbers(collection):
    for value in (13.0, 13.5):
        row = QUALITY[1] | {"value": value}
        examined = [QUALITY[0], row, QUALITY[2]]
        save(collection / "results" / "examination", parity=[], quality=examined, speed=[], date="2026-11-21")
        assert f"perplexity {max(value, 13.2):.1f}".removesuffix(".0") in front_page(collection)


def test_an_examination_comes_first(collection):
    better = [row | {"value": row["value"] - 0.5} for row in QUALITY[:1]] + QUALITY[1:3]
    save(collection / "results" / "examination", parity=[], quality=better, speed=[], date="2026-11-21")
    report.regenerate(collection)
    card = (collection / "notebooks" / "toy" / "README.md").read_text(encoding="utf-8")
    examined, live, speed = card.split("\nMeasured")[1:]
    assert examined.startswith(" on 2026-11-21 by `make bench CASE=toy`") and "agreement (" not in examined
    assert live.startswith(" by `make run CASE=toy`") and "agreement (" in live and "ms" in speed


def test_tables_of_a_readme(collection):
    report.regenerate(collection)
    card = (collection / "notebooks" / "toy" / "README.md").read_text(encoding="utf-8")
    for line in (
        "| perplexity (lower is better) | at most 12.5 (FP16) to 14 (INT4) | 12 | 12 | 13.2 "
        "| zero points ignored: 5,432 |",
        "| agreement (higher is better) | – | 1 | 0.875 |",
        "| prefill 512 | 31.3 ms (torch eager, FP32) | 10 ms (openvino, INT4) | 3.13x |",
    ):
        assert line in card.splitlines()
    assert card.startswith("# toy\n## quality\n") and card.endswith("<!-- /results -->\nend\n")
    assert "speed only" not in card  # PyTorch was not timed
    other = (collection / "notebooks" / "unmeasured" / "README.md").read_text(encoding="utf-8")
    assert other.count("Not measured yet: `make run CASE=unmeasured`") == 3
    assert not (collection / "notebooks" / "unmeasured" / "RESULTS.md").exists()


def test_a_readme_has_the_limits_of_the_machine_below_its_speed(collection):
    notes = {"background load": 0.25, "read bandwidth, GB/s": 30, "decoding, share of the read bandwidth": 0.5}
    save(collection / "results", notes=notes)
    report.regenerate(collection)
    card = (collection / "notebooks" / "toy" / "README.md").read_text(encoding="utf-8")
    speed = card.partition("## speed")[2].splitlines()
    lines = ["| read bandwidth, GB/s | 30 |", "| decoding, share of the read bandwidth | 0.5 |", "", "</details>"]
    assert speed[speed.index("<summary>Limits of the machine</summary>") + 4 :][:4] == lines
    assert "background" not in card


def test_a_readme_says_what_its_notebook_needs(collection):
    readme = collection / "notebooks" / "toy" / "README.md"
    readme.write_text("<!-- results:needs -->\n<!-- /results -->", encoding="utf-8")
    with pytest.raises(report.InvalidResults, match="asks for results:needs , but no results have the minutes"):
        report.regenerate(collection)
    report.add_needs(collection / "results" / "toy.json", 2.504, 3.456)
    report.regenerate(collection)
    text = readme.read_text(encoding="utf-8")
    assert "Measured by `make run CASE=toy` with model tiny on CPU" in text
    assert "): 2 min and 3.5 GB of memory, with converted models in the cache.\n" in text


def test_the_page_of_results_has_every_row(collection):
    report.regenerate(collection)
    page = (collection / "notebooks" / "toy" / "RESULTS.md").read_text(encoding="utf-8")
    for line in (
        "# Results: A toy model",
        "| decoder \\| all layers | 0.00001 | 1.000000 | 0.0001 | passes |",
        "| prefill 512 | openvino | INT4 | 10 | 10 | 51,200 tokens/s | 3.13 | – | 83.3 |",
        "| prefill 512 | torch eager | FP32 | 31.3 | 31.3 | 32 calls/s | – | – | – |",
        "| prefill 512 (speed only) | openvino | INT4 | 10 | 10 | 51,200 tokens/s | 3.13 | – | 83.3 |",
        "* background load: 0.25",
    ):
        assert line in page.splitlines()
    assert "Measured on 2026-11-21 by `make bench CASE=toy` with model tiny on CPU" in page
    assert [line for line in page.splitlines() if line.startswith("## ")] == ["## Quality", "## Parity", "## Speed"]


def test_regeneration_is_stable_and_check_only_looks(collection):
    toy, unmeasured = (collection / "notebooks" / case for case in ("toy", "unmeasured"))
    files = [collection / "README.md", toy / "README.md", toy / "RESULTS.md", unmeasured / "README.md"]
    before = [file.read_bytes() for file in files if file.exists()]
    assert report.regenerate(collection, write=False) == files
    assert [file.read_bytes() for file in files if file.exists()] == before
    assert report.regenerate(collection) == files
    written = [file.read_bytes() for file in files]
    assert report.regenerate(collection) == [] and [file.read_bytes() for file in files] == written
    save(collection / "results", parity=[])
    assert report.regenerate(collection, write=False) == [files[0], files[2]]


def test_a_failing_case_shows_in_the_catalogue(collection):
    assert "FAILS" not in front_page(collection)
    save(collection / "results", parity=[PARITY[0] | {"tolerance": 0.0}])
    assert "[A toy model](notebooks/toy/toy.ipynb)<br>**FAILS its checks**<br>Learn" in front_page(collection)


def test_the_catalogue_boasts_only_of_precisions_that_pass(collection):
    fastest = bench.row("openvino", "BF16", "prefill 512", bench.Timing.of([1.0]), torch=SLOW)
    reported = compare.quality("perplexity", "BF16", 13.9, 12.0, None, "lower")
    save(collection / "results", speed=[*SPEED, fastest], quality=[*QUALITY, reported])
    text = front_page(collection)
    assert "3.1x PyTorch (INT4, prefill 512)" in text and "BF16" not in text


def test_the_catalogue_compares_with_the_fastest_pytorch(collection):
    compiled = bench.row("torch.compile", "BF16", "prefill 512", bench.Timing.of([15.0]))
    save(collection / "results", speed=[*SPEED, compiled])
    assert "1.5x PyTorch (INT4, prefill 512)" in front_page(collection)


def test_the_catalogue_has_the_ratio_where_most_time_goes(collection):
    least, workload = bench.Timing.of([0.01]), "head alone"
    small = [bench.row("openvino", "INT4", workload, least), bench.row("torch eager", "FP32", workload, FAST)]
    save(collection / "results", speed=[*small, *SPEED])
    text = front_page(collection)
    assert "3.1x PyTorch (INT4, prefill 512)" in text and workload not in text


@pytest.mark.parametrize(("pytorch_ms", "expected"), [(20.0, "2x"), (50.0, "3.1x")])
def test_the_catalogue_has_the_worse_of_two_ratios(collection, pytorch_ms, expected):
    slow = bench.row("torch eager", "FP32", "prefill 512", bench.Timing.of([pytorch_ms]))
    save(collection / "results" / "bench", parity=[], quality=[], speed=[SPEED[0], slow], date="2026-11-21")
    assert f"| {expected} PyTorch (INT4, prefill 512)" in front_page(collection)


def test_the_catalogue_leaves_random_weights_out(collection):
    labelled = [row | {"workload": "prefill 4096", "label": "random weights, speed only"} for row in SPEED]
    rows = [*labelled, *(row | {"label": "first token p99 20 ms"} for row in SPEED)]
    save(collection / "results", speed=rows)
    assert "3.1x PyTorch (INT4, prefill 512)" in front_page(collection)
    save(collection / "results", speed=labelled)
    assert front_page(collection).endswith("(12 in PyTorch) | – |")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<!-- results:catalogue -->", "without its"),
        ("<!-- results:quality -->\n<!-- /results -->", "asks for results:quality"),
    ],
)
def test_wrong_markers(collection, text, fault):
    (collection / "README.md").write_text(text, encoding="utf-8")
    with pytest.raises(report.InvalidResults, match=fault):
        report.regenerate(collection)
    assert (collection / "README.md").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("mark", "fault"),
    [
        ('quality ["bleu"]', "no results have the metrics bleu"),
        ('speed ["decode"]', "no results have the workloads decode"),
        ("speed prefill", "asks for results:speed prefill, but Expecting value"),
        ("parity", "asks for results:parity"),
    ],
)
def test_a_readme_asks_for_what_was_not_measured(collection, mark, fault):
    readme = collection / "notebooks" / "toy" / "README.md"
    readme.write_text(f"<!-- results:{mark} --><!-- /results -->", encoding="utf-8")
    with pytest.raises(report.InvalidResults, match=fault):
        report.regenerate(collection)


def test_command_line(collection, monkeypatch, capsys):
    monkeypatch.setattr(report, "ROOT", collection)
    monkeypatch.setattr(report.regenerate, "__defaults__", (collection, True))
    assert report.main(["--check"]) == 1
    assert "README.md is stale: run python -m utils.report" in capsys.readouterr().out
    assert report.main([]) == 0 and report.main(["--check"]) == 0
    (collection / "results" / "toy.json").write_text("{}", encoding="utf-8")
    assert report.main([]) == 1
    assert "'case' is a required property" in capsys.readouterr().err


def test_a_readme_has_what_an_emulated_arm_processor_computed(collection):
    readme = collection / "notebooks" / "toy" / "README.md"
    readme.write_text('<!-- results:arm ["toy-fp16", "toy-int4"] --><!-- /results -->', encoding="utf-8")
    report.regenerate(collection)
    assert "| toy-fp16 | untried | untried |" in readme.read_text(encoding="utf-8")
    agrees, small = {"result": "agrees", "difference": 0.00042}, {"result": "agrees", "difference": 3e-7}
    differs = {"result": "differs", "difference": 0.987}
    fails = {"result": "does not run", "error": "no primitive"}
    rows = {
        "toy-fp16/one": {"date": "2026-11-25", "f32": agrees, "f16": differs},
        "toy-fp16/two": {"date": "2026-11-25", "f32": small, "f16": fails},
        "toy-fp16/new": {"date": "2026-11-25", "f32": {"result": "untried", "error": "no sizes"}, "f16": small},
        "toy-fp16-other/one": {"date": "2026-11-25", "f32": differs, "f16": differs},
        "toy-int4/one": {"date": "2026-11-25", "f32": small, "f16": agrees},
    }
    results = {"openvino": "2026.4.1", "emulator": "qemu", "models": rows}
    (collection / "results" / "bench" / "emulated-arm.json").write_text(json.dumps(results), encoding="utf-8")
    report.regenerate(collection)
    text = readme.read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("| toy-fp16 |"))
    f32, f16 = line.split(" | ")[1:]
    assert f32 == "2 of 3 agree within 0.00042<br>new untried: no sizes"
    assert f16.startswith(
        "1 of 3 agree within 0.00001<br>**one differs** by 0.99<br>**two does not run**: no primitive"
    )
    assert "| toy-int4 | agrees within 0.00001 | agrees within 0.00042 |" in text
    assert "correctness only" in text


def test_readmes_say_which_models_run_on_arm(collection):
    readme = collection / "notebooks" / "toy" / "README.md"
    readme.write_text(
        '<!-- results:arm ["toy-fp16", "toy"] --><!-- /results -->\n<!-- results:quality ["a"] --><!-- /results -->\n',
        encoding="utf-8",
    )
    assert report.on_arm(collection) == {"toy-fp16", "toy"}


def test_the_readers_of_mandarin_are_compared(collection):
    readme = collection / "notebooks" / "toy" / "README.md"
    readme.write_text("<!-- results:mandarin -->\n<!-- /results -->\n", encoding="utf-8")
    report.regenerate(collection)
    assert "Not measured yet" in readme.read_text(encoding="utf-8")
    readers = {"before": {"test": {"er": [3, 4], "dates": [1, 6]}}, "now": {"test": {"er": [4, 4], "dates": [6, 6]}}}
    path = collection / "results" / "examination" / "mandarin.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"measured": "Measured today.", "readers": readers}), encoding="utf-8")
    report.regenerate(collection)
    text = readme.read_text(encoding="utf-8")
    assert "Measured today." in text and "| er | 4 | 75.0 % | 100.0 % |" in text
    assert "| all | 10 | 40.0 % | 100.0 % |" in text
