"""Commands of the notebooks: the same arguments, a message in place of a traceback."""

import pytest

from utils import command


def test_every_command_takes_a_folder_and_a_device():
    parser = command.parser("notebooks.dien", "Score clicks.")
    assert parser.prog == "python -m notebooks.dien"
    assert vars(parser.parse_args([])) == {"folder": None, "device": "CPU"}
    assert parser.parse_args(["here", "--device", "GPU"]).folder == "here"


@pytest.mark.parametrize("error", [ValueError("a bad word"), FileNotFoundError("no file")])
def test_bad_input_is_a_message(capsys, error):
    def work(given):
        raise error

    assert command.run(work, 1) == 1
    assert capsys.readouterr().err == f"{error}\n"


def test_other_errors_pass_and_success_is_zero():
    assert command.run(lambda: None) == 0
    with pytest.raises(ZeroDivisionError):
        command.run(lambda: 1 / 0)
