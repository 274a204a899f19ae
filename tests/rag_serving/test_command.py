"""The command line with the real models: write files, search, ask, and what goes wrong."""

import pytest

from notebooks.rag_serving.__main__ import main


def test_files_go_in_and_answers_come_out(url, tmp_path, capsys):
    flat, broken = tmp_path / "flat.txt", tmp_path / "broken.txt"
    flat.write_text("The flat number of the Miller family is 4711.", encoding="utf-8")
    broken.write_bytes(b"\xff\xfe\x00")
    common = ["--database", url]
    assert main([*common, "ingest", str(broken), str(flat), str(tmp_path / "none.txt")]) == 1
    printed = capsys.readouterr()
    assert f"{flat}: new" in printed.out
    assert "broken.txt is no text in UTF-8" in printed.err and "2 of 3 files were not written" in printed.err
    assert main([*common, "ask", "What is the flat number of the Miller family?"]) == 0
    passage, answer = capsys.readouterr().out.strip().split("\n")
    assert passage.startswith(f"[1] {flat}, 0.0328 (vector 1, words 1): The flat") and "4711" in answer
    assert main([*common, "search", "--rerank", "flat number"]) == 0
    assert capsys.readouterr().out.startswith(f"[1] {flat}, 0.0328 (vector 1, words 1, reranker ")
    assert main([*common, "delete", str(flat)]) == 0
    assert main([*common, "delete", str(flat)]) == 1
    assert "There is no document" in capsys.readouterr().err
    assert main([*common, "search", "Miller"]) == 0 and capsys.readouterr().out == ""


def test_a_database_that_is_away_is_a_message(tmp_path, capsys):
    assert main(["--database", f"postgresql://postgres@/rag?host={tmp_path}", "search", "wine"]) == 1
    assert "The database is not available" in capsys.readouterr().err


def test_workers_write_files_as_one_process_does(url, tmp_path, capsys):
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    for number, file in enumerate(files):
        file.write_text(f"The flat number of family {number} is 47{number}.", encoding="utf-8")
    common = ["--database", url, "ingest"]
    assert main([*common, str(files[0])]) == 0
    capsys.readouterr()
    assert main([*common, "--workers", "2", *map(str, files)]) == 0
    statuses = sorted(capsys.readouterr().out.strip().split("\n"))
    assert statuses == [f"{file}: {'new' if number else 'unchanged'}" for number, file in enumerate(files)]
    with pytest.raises(SystemExit):
        main([*common, "--workers", "0", str(files[0])])
    assert "'0' is no number from 1 on" in capsys.readouterr().err
