"""The command line: one line and status 2 for a mistake, status 1 for a failure."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from rvi_nb import __version__
from rvi_nb.cli.command import main
from rvi_nb.data import datasets as data
from rvi_nb.data import record


@pytest.fixture(autouse=True)
def empty_places(tmp_path, monkeypatch):
    monkeypatch.setenv("RVI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RVI_DATA", str(tmp_path / "data"))


def rvi(*args):
    return CliRunner().invoke(main, args)


def test_version():
    result = rvi("--version")
    assert result.exit_code == 0 and result.output.strip() == f"rvi, version {__version__}"


def test_help_lists_commands():
    for args in ((), ("--help",)):
        result = rvi(*args)
        assert result.exit_code == 0 and "data" in result.output


def test_data_lists_each_dataset(monkeypatch):
    lines = rvi("data").output.splitlines()
    assert [line.split()[0] for line in lines] == [*data.DATASETS, "cache:"]
    assert lines[0].split()[1] == "missing" and "no train-images-idx3-ubyte there" in lines[0]
    assert [line.split() for line in lines[-3:-1]] == [["toy", "found", "generated"], ["toy_tanh", "found", "generated"]]


@pytest.mark.parametrize(
    "args",
    [
        ("data", "fetch", "cifar"),
        ("data", "fetch", "toy", "cifar"),
        ("data", "fetch"),
        ("data", "drop"),
        ("dance",),
        ("--colour",),
        ("data", "fetch", "--fast", "toy"),
    ],
)
def test_mistakes_cost_one_line(args):
    result = rvi(*args)
    assert result.exit_code == 2
    assert result.output.count("\n") == 1 and result.output.startswith("Error: ")


def test_unknown_dataset_is_named():
    output = rvi("data", "fetch", "cifar").output
    assert "cifar" in output and all(name in output for name in data.DATASETS)


def test_fetch_says_where():
    result = rvi("data", "fetch", "toy")
    assert (result.exit_code, result.output) == (0, "toy: generated\n")


def test_failed_fetch_explains_and_does_not_stop_the_others(monkeypatch):
    mosi = data.DATASETS["mosi"]
    monkeypatch.setitem(record._records, "mosi", replace(mosi, files=replace(mosi.files, remote=())))
    result = rvi("data", "fetch", "mosi", "toy")
    assert result.exit_code == 1
    assert "toy: generated" in result.output and "no source has a good transcripts.csv" in result.output
