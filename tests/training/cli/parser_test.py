"""Arguments that every command rejects."""

import pytest

from training.__main__ import main


def test_names_that_are_too_long_are_refused(tmp_path, capsys, monkeypatch):
    for arguments in (
        ["train", "{long}"],
        ["evaluate", "{long}"],
        ["fewshot", "digits", "--csv", "{long}"],
        ["predict", "{long}", "image.png"],
        ["export", "{long}"],
        ["plan", "digits", "devices={digits}"],
        ["duplicates", "digits", "--to", "{long}"],
    ):
        monkeypatch.chdir(tmp_path)
        given = [argument.format(long="a" * 100_000, digits="9" * 5000) for argument in arguments]
        assert main(given) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert len(error) < 1000
        assert not [path for path in tmp_path.iterdir() if path.name != "runs"]


def test_names_that_are_not_utf8_are_refused(capsys):
    for arguments in (["train", "digits", "data.directory={}"], ["evaluate", "{}"], ["predict", "run", "{}"]):
        assert main([argument.format("caf\udce9") for argument in arguments]) == 2
        assert "error: Names must be in UTF-8. Received: " in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_any_work(tmp_path, capsys):
    for path in (tmp_path, tmp_path / "absent" / "file.csv"):
        with pytest.raises(SystemExit):
            main(["fewshot", "run", "--csv", str(path)])
        assert f"{path} cannot be written: name a file in a folder that exists" in capsys.readouterr().err
    file = tmp_path / "file.txt"
    file.touch()
    with pytest.raises(SystemExit):
        main(["duplicates", "digits", "--to", str(file / "folder")])
    assert f"{file / 'folder'} cannot be made: {file} is not a folder" in capsys.readouterr().err


def test_a_number_that_is_none_is_named(capsys):
    for arguments, message in (
        (["fewshot", "a_run", "--knn", "data.dataset=mnist"], "at least 1. Put section.field=value before the options"),
        (["fewshot", "a_run", "--shots", "5", "data.dataset=mnist"], "not a whole number of at least 1. Put sec"),
        (["explain", "a_run", "--neighbours", "-1"], "argument --neighbours: -1 is not a whole number of at least 0\n"),
        (["predict", "a_run", "x.png", "--top", "1" * 10], "argument --top: 1111111111 has more than 9 digits\n"),
        (["predict", "a_run", "x.png", "--top", "1" * 5000], "111 has more than 9 digits\n"),
        (["predict", "a_run", "x.png", "--top", "0"], "argument --top: 0 is not a whole number of at least 1\n"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        error = capsys.readouterr().err
        assert message in error
        assert len(error) < 3000
