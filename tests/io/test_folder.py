"""Folders that are whole at every moment, and never written over what is not theirs."""

import fcntl
import io
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from stored_explainers import contents

import avcg
from avcg.errors import ArtifactError
from avcg.files import beside
from avcg.io.folder import MANIFEST, check_folder, read_folder, validate, write_folder

OLD = ({"format": "avcg.test", "version": 1, "of": "old"}, {"weights.safetensors": b"old" * 99, "model-0.onnx": b"one"})
NEW = ({"format": "avcg.test", "version": 1, "of": "new"}, {"weights.safetensors": b"new" * 77, "model-0.onnx": b"one"})


def read(path):
    manifest, files = read_folder(path, "avcg.test", 1)
    return {name: manifest[name] for name in ("format", "version", "of")}, files


class Interrupted(BaseException):
    """As when the process is told to stop."""


class Interruptions:
    """Everything that touches the disk fails from a certain call on, or at it."""

    def __init__(self, monkeypatch, at, error, *, after, dead):
        self.left, self.error, self.after, self.dead, self.fired = at, error, after, dead, False
        for home, name in (
            (os, "fsync"), (os, "replace"), (os, "unlink"), (os, "open"), (os, "mkdir"), (io, "open"),
        ):  # fmt: skip
            monkeypatch.setattr(home, name, self.around(getattr(home, name)))

    def around(self, function):
        def call(*arguments, **settings):
            if self.fired:
                if self.dead:
                    raise self.error
                return function(*arguments, **settings)
            self.left -= 1
            if self.left >= 0:
                found = function(*arguments, **settings)
                return self.writer(found) if function is IO_OPEN and "x" in str(arguments[1:]) else found
            self.fired = True
            if self.after:
                done = function(*arguments, **settings)
                if hasattr(done, "close"):
                    done.close()
                elif isinstance(done, int):
                    os.close(done)
            raise self.error

        return call

    def writer(self, file):
        whole = file.write

        def write(data):
            self.left -= 1
            if self.left < 0 and not self.fired:
                self.fired = True
                whole(data[: len(data) // 2])
                raise self.error
            return whole(data)

        return _Proxy(file, write)


IO_OPEN = io.open


class _Proxy:
    def __init__(self, file, write):
        self._file, self.write = file, write

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()


class TestWholeAtEveryMoment:
    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Interrupted()], ids=["full", "stopped"])
    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("dead", [False, True])
    @pytest.mark.parametrize("before", ["old", "nothing"])
    def test_an_interrupted_save_leaves_what_was_there_or_what_should_be(self, tmp_path, error, after, dead, before):
        """At the k-th thing done to the disk, for every k, before or after it is done, with or without cleaning up."""
        outcomes = set()
        for k in range(100):
            path = tmp_path / str(k)
            if before == "old":
                write_folder(path, *OLD)
            with pytest.MonkeyPatch.context() as patch:
                interruptions = Interruptions(patch, k, error, after=after, dead=dead)
                try:
                    write_folder(path, *NEW)
                    outcome = "saved"
                except ArtifactError as refusal:
                    outcome = str(refusal).removeprefix(f"{path} ")
                except Interrupted:
                    outcome = "stopped"
            found = None
            if before == "old" or (path / MANIFEST).exists():
                found = read(path)
                assert found in (OLD, NEW)
            if outcome == "saved":
                assert found == NEW
            outcomes.add((outcome, "nothing" if found is None else found[0]["of"]))
            write_folder(path, *NEW)  # the next save cleans up
            assert read(path) == NEW
            assert len(list(path.iterdir())) == 3
            if not interruptions.fired:
                break
        assert k > 10
        assert ("saved", "new") in outcomes
        refusal = "stopped" if isinstance(error, Interrupted) else "cannot be written: No space left on device."
        assert {outcome for outcome, _ in outcomes} == {"saved", refusal}
        assert any(state == ("old" if before == "old" else "nothing") for _, state in outcomes)

    def test_a_killed_process_leaves_a_whole_folder(self, tmp_path):
        """Fifty times, at any moment."""
        code = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[2])
from avcg.io.folder import read_folder, write_folder
def content(i):
    return {"format": "avcg.test", "version": 1, "of": i}, {"weights.safetensors": bytes([i]) * 50_000 * (i + 1)}
path, seen = sys.argv[1], set()
write_folder(path, *content(0))
for i in range(50):
    hear, tell = os.pipe()
    child = os.fork()
    if not child:
        while True:
            for j in range(4):
                write_folder(path, *content(j))
                os.write(tell, b".")
    for _ in range(i % 5):
        os.read(hear, 1)
    time.sleep(random.Random(i).uniform(0.0, 0.003))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(hear), os.close(tell)
    manifest, files = read_folder(path, "avcg.test", 1)
    assert files == content(manifest["of"])[1]
    seen.add(manifest["of"])
write_folder(path, *content(0))
print(len(os.listdir(path)), len(seen))
"""
        root = str(Path(avcg.__file__).parent.parent)
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "x"), root], capture_output=True, text=True, check=True
        )
        files, seen = map(int, done.stdout.split())
        assert files == 2
        assert seen > 1

    def test_a_reader_never_sees_a_mix(self, tmp_path):
        path, over_, wrong, count = tmp_path / "x", threading.Event(), [], []
        write_folder(path, *OLD)

        def look():
            while not over_.is_set():
                try:
                    found = read(path)
                    count.append(found[0]["of"])
                    if found not in (OLD, NEW):
                        wrong.append(found)
                except Exception as error:  # it is reported below
                    wrong.append(error)

        readers = [threading.Thread(target=look) for _ in range(2)]
        for reader in readers:
            reader.start()
        for i in range(150):
            write_folder(path, *(NEW, OLD)[i % 2])
        over_.set()
        for reader in readers:
            reader.join()
        assert not wrong
        assert set(count) == {"old", "new"}

    def test_two_saves_at_once_wait_for_each_other(self, tmp_path):
        path, wrong = tmp_path / "x", []

        def save(content):
            try:
                for _ in range(40):
                    write_folder(path, *content)
            except Exception as error:  # it is reported below
                wrong.append(error)

        writers = [threading.Thread(target=save, args=(one,)) for one in (OLD, NEW)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert not wrong
        assert read(path) in (OLD, NEW)
        assert len(list(path.iterdir())) == 3

    def test_disks_without_locks_are_written_too(self, tmp_path, monkeypatch):
        def refused(*_):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(fcntl, "flock", refused)
        write_folder(tmp_path / "x", *NEW)
        monkeypatch.setattr("avcg.io.folder.fcntl", None)
        write_folder(tmp_path / "x", *OLD)
        assert read(tmp_path / "x") == OLD

    def test_what_cannot_be_removed_does_not_fail_a_save(self, tmp_path, monkeypatch):
        write_folder(tmp_path / "x", *OLD)
        real = os.unlink

        def held(path, **settings):
            if ".part" not in str(path):
                raise PermissionError(13, "in use")
            return real(path, **settings)

        monkeypatch.setattr(os, "unlink", held)
        write_folder(tmp_path / "x", *NEW)
        assert read(tmp_path / "x") == NEW

    def test_what_a_manifest_names_is_on_the_disk_before_it_is(self, tmp_path, monkeypatch):
        """A machine that stops may forget the names of files, and not in order, unless their folder is written too."""
        sync, move, events = os.fsync, os.replace, []

        def synced(handle):
            events.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
            return sync(handle)

        def moved(source, target):
            events.append(Path(target).name.split("-")[0])
            return move(source, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", moved)
        write_folder(tmp_path / "x", *NEW)
        assert events == ["file", "weights", "file", "model", "folder", "file", MANIFEST, "folder"]

    def test_unchanged_files_are_not_written_again(self, tmp_path):
        write_folder(tmp_path / "x", *OLD)
        (before,) = (tmp_path / "x").glob("model*")
        stamp = before.stat().st_mtime_ns, before.stat().st_ino
        write_folder(tmp_path / "x", *NEW)
        assert (before.stat().st_mtime_ns, before.stat().st_ino) == stamp

    def test_others_may_read_what_the_user_lets_them(self, tmp_path):
        before = os.umask(0o077)
        try:
            write_folder(tmp_path / "x", *OLD)
        finally:
            os.umask(before)
        assert all(file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "x").iterdir())

    @pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
    def test_what_takes_the_place_of_a_private_file_is_as_private(self, tmp_path, mode):
        place = tmp_path / "answers.csv"
        place.write_text("old")
        place.chmod(mode)
        seen = []
        with beside(place) as half:
            seen.append(stat.S_IMODE(half.stat().st_mode))
            half.write_text("new")
        assert (place.read_text(), stat.S_IMODE(place.stat().st_mode)) == ("new", mode)
        assert seen == [mode | 0o200]  # from the first byte on


class TestOtherPeoplesThings:
    def refused(self, path, match):
        before = contents(path) if path.is_dir() else path.read_bytes()
        with pytest.raises(ArtifactError, match=match):
            write_folder(path, *NEW)
        assert (contents(path) if path.is_dir() else path.read_bytes()) == before

    def test_a_folder_with_other_things_is_refused(self, tmp_path):
        for name in ("notes.txt", "film.part", "photo-0123456789abcdef.JPG", "manifest.json"):
            (tmp_path / name).mkdir()
            (tmp_path / name / name).write_text('{"format": "web"}')
            self.refused(tmp_path / name, "other files in it. Give a new folder")

    def test_a_manifest_that_only_mentions_the_format_is_somebody_elses(self, tmp_path):
        (tmp_path / MANIFEST).write_text('{"about": "avcg.test"}')
        self.refused(tmp_path, "other files")

    def test_a_file_is_refused(self, tmp_path):
        (tmp_path / "x").write_text("mine")
        self.refused(tmp_path / "x", "is a file. Give the name of a folder")
        for inside in (tmp_path / "x" / "y", tmp_path / "x" / "y" / "z"):
            with pytest.raises(ArtifactError, match=r"cannot be written: \S+/x is a file"):
                write_folder(inside, *NEW)

    def test_where_nothing_may_be_written_is_said_before_the_work(self, tmp_path, monkeypatch):
        """By the nearest folder that there is: the others are yet to be made in it."""
        (tmp_path / "kept").mkdir()
        asked = []
        monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
        for folder, nearest in (("kept", "kept"), ("new", "."), ("new/one/in/another", ".")):
            with pytest.raises(ArtifactError, match=f"{folder} cannot be written: there is no permission to write in"):
                check_folder(tmp_path / folder, "avcg.test")
            assert asked.pop() == (tmp_path / nearest, os.W_OK | os.X_OK)
        monkeypatch.chdir(tmp_path / "kept")
        with pytest.raises(ArtifactError, match="x cannot be written"):
            check_folder("x", "avcg.test")
        assert asked.pop()[0] == tmp_path / "kept"

    @pytest.mark.parametrize("what", ["open", "mkdir"])
    def test_a_folder_that_may_not_be_written_is_a_sentence(self, tmp_path, monkeypatch, what):
        def denied(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(*{"open": (io, "open"), "mkdir": (os, "mkdir")}[what], denied)
        with pytest.raises(ArtifactError, match=r"x cannot be written: Permission denied\.$"):
            write_folder(tmp_path / "x", *NEW)

    def test_what_lies_beside_is_left_alone(self, tmp_path):
        write_folder(tmp_path, *OLD)
        (tmp_path / "README.md").write_text("mine")
        (tmp_path / "film.part").write_text("mine too")
        write_folder(tmp_path, *NEW)
        assert read(tmp_path) == NEW
        assert {"README.md", "film.part"} < set(contents(tmp_path))

    def test_a_damaged_one_can_be_saved_over(self, tmp_path):
        write_folder(tmp_path, *OLD)
        for damage in (b"", b"{}", b"\0" * 99):
            (tmp_path / MANIFEST).write_bytes(damage)
            write_folder(tmp_path, *NEW)
            assert read(tmp_path) == NEW

    def test_a_link_or_a_folder_in_a_files_place_is_not_written_into(self, tmp_path):
        write_folder(tmp_path / "x", *NEW)
        (place,) = (tmp_path / "x").glob("weights*")
        data = place.read_bytes()
        place.unlink()
        (tmp_path / "elsewhere").write_bytes(data)
        place.symlink_to(tmp_path / "elsewhere")
        assert read(tmp_path / "x") == NEW  # as caches of files do
        write_folder(tmp_path / "x", *NEW)
        assert not place.is_symlink()
        place.unlink()
        place.mkdir()
        with pytest.raises(ArtifactError, match="cannot be written: Is a directory"):
            write_folder(tmp_path / "x", *NEW)


@pytest.mark.parametrize(
    ("value", "pattern", "wrong"),
    [
        (1, int, None), (True, int, "it is True"), (1, float, None), (True, float, "it is True"),
        (1.5, int, "it is 1.5"), (True, bool, None), (None, object, None), (None, (int, None), None),
        (10**30, int, f"it is {10**30}"), (10**30, float, f"it is {10**30}"), (1e30, float, None),
        ("a", ("a", "b"), None), (0, (False,), "it is 0"), ([1, 2], [int], None), ([], [int], None),
        ([1, "2"], [int], "it[1] is '2'"), ([1], [int, int], "it is [1]"), ([1, 2], [int, int], None),
        ({}, [int], "it is {}"), ({"a": 1}, {"a": int}, None), ({}, {"a": int}, "it lacks 'a'"),
        ({"a": 1, "b": 2}, {"a": int}, "it has 'b'"), ({"a": 1, "b": 2}, {"a": int, ...: int}, None),
        ({}, {"a?": int}, None), ({"a": "x"}, {"a?": int}, "it.a is 'x'"), ([], {}, "it is []"),
        ({"a": {"b": [{}]}}, {"a": {"b": [{"c": int}]}}, "it.a.b[0] lacks 'c'"),
    ],
)  # fmt: skip
def test_patterns(value, pattern, wrong):
    assert validate(value, pattern) == wrong
