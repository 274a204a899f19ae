"""Environment over parameter over widget."""

import pytest

from utils import select

OPTIONS = ["tiny", "released"]


@pytest.fixture(autouse=True)
def undecided(monkeypatch):
    for variable in ("MODEL", "DEVICE", "PRECISION"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def kernel(monkeypatch):
    import IPython

    monkeypatch.setattr(IPython, "get_ipython", lambda: type("Shell", (), {"kernel": object()})())


def test_environment_wins_over_parameter_over_default(monkeypatch):
    assert select.model(OPTIONS).value == "tiny"
    assert select.model(OPTIONS, parameter="released").value == "released"
    monkeypatch.setenv("MODEL", "tiny")
    assert select.model(OPTIONS, parameter="released").value == "tiny"
    monkeypatch.setenv("MODEL", "")
    assert select.model(OPTIONS, parameter="released").value == "released"


def test_a_decided_value_displays_as_text(monkeypatch):
    monkeypatch.setenv("PRECISION", "int8")
    assert repr(select.precision(["FP16", "INT8"], "FP16")) == "precision: INT8 (from PRECISION)"


def test_a_kernel_shows_a_list_unless_something_decides(kernel, monkeypatch):
    import ipywidgets

    chosen = select.model(OPTIONS)
    assert isinstance(chosen, ipywidgets.Dropdown)
    assert (chosen.value, chosen.options, chosen.description) == ("tiny", tuple(OPTIONS), "Model:")
    chosen.value = "released"
    assert chosen.value == "released"
    assert isinstance(select.model(OPTIONS, parameter="tiny"), select.Choice)
    monkeypatch.setenv("MODEL", "released")
    assert isinstance(select.model(OPTIONS), select.Choice)


def test_an_unknown_value_lists_the_options(monkeypatch, kernel):
    with pytest.raises(ValueError, match="The parameter model says 'huge'. Choose one of: tiny, released"):
        select.model(OPTIONS, parameter="huge")
    with pytest.raises(ValueError, match="The default precision says 'INT2'"):
        select.precision(["INT8"], "INT2")
    monkeypatch.setenv("MODEL", "huge")
    with pytest.raises(ValueError, match="environment variable MODEL says 'huge'"):
        select.model(OPTIONS)


def test_device_offers_what_openvino_finds(monkeypatch):
    assert select.device().value == "CPU"
    monkeypatch.setenv("DEVICE", "auto")
    assert select.device().value == "AUTO"
    monkeypatch.setenv("DEVICE", "TPU")
    with pytest.raises(ValueError, match="'TPU'. Choose one of: CPU.*AUTO"):
        select.device()
