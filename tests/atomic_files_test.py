"""Files and folders are complete or absent whenever a process is killed, and the next process cleans up."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from keras_vit.atomic_files import remove_abandoned, replace_atomically, replace_file_atomically, working_folder

# The program imports this module alone, because importing Keras takes seconds.
_PROGRAM = """
import importlib.util, json, os, pathlib, signal, sys, tempfile
specification = importlib.util.spec_from_file_location("atomic_files", sys.argv[1])
files = importlib.util.module_from_spec(specification)
specification.loader.exec_module(files)
import filelock

def file(folder, content):
    with files.replace_file_atomically(folder / "file") as unfinished:
        unfinished.write_text(content)

def version(folder, content):
    with files.replace_atomically(folder / "1") as working:
        (working / "1").mkdir()
        for name in "ab":
            (working / "1" / name).write_text(content)

def several(folder, content):
    with files.replace_atomically(folder / "config", folder / "weights") as working:
        for name in ("config", "weights"):
            (working / name).write_text(content)

def killed_at(number, write, folder):
    "Whether the process was killed at this file operation, before it was through."
    process = os.fork()
    if process == 0:
        count = iter(range(number))
        def hook(event, arguments):
            if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and next(count, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        write(folder, "new")
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(process, 0)[1])

def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}

found = []
for write in (file, version, several):
    for number in range(1000):
        folder = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[2]))
        write(folder, "old")
        was_killed = killed_at(number, write, folder)
        left = {path.name for path in folder.iterdir() if path.name.startswith("unfinished-")}
        files.remove_abandoned(folder)
        found.append([write.__name__, contents(folder), sorted(path.name for path in folder.iterdir()), bool(left)])
        if not was_killed:
            break
print(json.dumps(found))
"""


def _run(*arguments):
    path = pathlib.Path(sys.modules[replace_file_atomically.__module__].__file__)
    command = [sys.executable, "-c", _PROGRAM, path, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
def test_killed_at_any_file_operation(tmp_path):
    whole = {
        "file": [{"file": content} for content in ("old", "new")],
        "version": [{"1/a": content, "1/b": content} for content in ("old", "new")],
        # Readers look for "config". Without it, the folder contains no model.
        "several": [
            *({"config": content, "weights": content} for content in ("old", "new")),
            *({"config": content} for content in ("old", "new")),
        ],
    }
    found = _run(tmp_path)
    for kind, contents, names, _ in found:
        assert contents in whole[kind]
        assert not [name for name in names if name.startswith("unfinished-")]
    for kind, (old, new, *_) in whole.items():
        of_kind = [contents for other, contents, *_ in found if other == kind]
        assert len(of_kind) > 10
        assert (of_kind[0], of_kind[-1]) == (old, new)
    assert sum(was_left for *_, was_left in found) > 10


def test_what_fails_leaves_what_was_there(tmp_path):
    (tmp_path / "file").write_text("old")

    def write():
        with replace_file_atomically(tmp_path / "file") as unfinished:
            unfinished.write_text("new")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write()
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_replaced_is_put_back(tmp_path, monkeypatch):
    (tmp_path / "1").mkdir()
    rename = pathlib.Path.rename

    def fail(path, target):
        if path.name == "1" and path.parent != tmp_path:
            raise OSError("full")
        rename(path, target)

    monkeypatch.setattr(pathlib.Path, "rename", fail)
    with pytest.raises(OSError, match="full"), replace_atomically(tmp_path / "1") as working:
        (working / "1" / "new").mkdir(parents=True)
    assert list(tmp_path.rglob("*")) == [tmp_path / "1"]


def test_what_is_in_use_and_what_is_the_users_stays(tmp_path):
    (tmp_path / "unfinished-symphony").mkdir()
    (tmp_path / "unfinished-essay-abcdefgh").mkdir()
    (tmp_path / "unfinished-essay-abcdefgh" / "text").write_text("mine")
    with working_folder(tmp_path, "weights") as folder, replace_file_atomically(tmp_path / "file") as unfinished:
        unfinished.write_text("new")
        remove_abandoned(tmp_path)
        assert folder.is_dir()
        assert unfinished.is_file()
    assert set(os.listdir(tmp_path)) == {"unfinished-symphony", "unfinished-essay-abcdefgh", "file"}


def test_a_folder_made_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "1"

    def write():
        with replace_atomically(target, overwrite=False) as folder:
            (folder / "1").mkdir()
            target.mkdir()
            (target / "theirs").touch()

    with pytest.raises(FileExistsError, match="1 exists"):
        write()
    assert os.listdir(target) == ["theirs"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the names of open files")
def test_all_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def record(descriptor):
        synced.append((os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), (tmp_path / "file").exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    with replace_file_atomically(tmp_path / "file") as unfinished:
        unfinished.write_text("new")
    assert ("file", False) in synced
    assert (tmp_path.name, True) in synced


def test_who_may_read_follows_the_umask_which_stays_as_it_is(tmp_path, monkeypatch):
    """All threads share the umask, so it must not be changed: another thread may create files meanwhile."""
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("set for all threads"))
    with replace_atomically(tmp_path / "1") as folder:
        (folder / "1").mkdir()
    assert (tmp_path / "1").stat().st_mode == (tmp_path / "other").stat().st_mode
