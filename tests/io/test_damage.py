"""Stored explainers that were damaged, or written by other means: refused with a reason, or working."""

import copy
import json
import os
import shutil
import warnings

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from stored_explainers import made, sign

import avcg
from avcg.errors import ArtifactError, DataError, SchemaError
from avcg.io.folder import FORMAT, MANIFEST, VERSION, read_file, read_folder, read_manifest, write_folder
from avcg.io.tensors import read_tensors, write_tensors


@pytest.fixture(params=["one network", "xgboost"])
def broken(request, stored, tmp_path):
    """A copy of an artifact, to be damaged."""
    shutil.copytree(stored(request.param)[0], tmp_path / "x")
    return tmp_path / "x"


def refuses(path, match=None):
    with pytest.raises(ArtifactError, match=match) as refusal:
        avcg.load(path)
    assert len(str(refusal.value)) > 20


class TestDamage:
    def test_nothing_there(self, tmp_path):
        refuses(tmp_path / "nowhere", "There is no folder '.*nowhere'. Give one that AVCG.save or avcg fit wrote")
        refuses(tmp_path, "has no manifest.json. Give a folder")
        (tmp_path / "file").write_text("x")
        refuses(tmp_path / "file", "There is no folder")

    def test_every_file_cut_off_or_gone(self, broken):
        for file in sorted(broken.iterdir()):
            data = file.read_bytes()
            for cut in {0, 1, len(data) // 2, len(data) - 1}:
                file.write_bytes(data[:cut])
                refuses(broken)
            file.write_bytes(data + b"\n")
            refuses(broken)
            file.unlink()
            refuses(broken, "has no manifest.json" if file.name == MANIFEST else "lacks")
            file.mkdir()
            refuses(broken)
            file.rmdir()
            file.symlink_to("nowhere")
            refuses(broken)
            file.unlink()
            file.symlink_to("/dev/zero")
            refuses(broken)
            file.unlink()
            os.mkfifo(file)
            refuses(broken)
            file.unlink()
            file.write_bytes(data)
        avcg.load(broken)

    def test_every_byte_of_the_manifest_counts(self, broken):
        file = broken / MANIFEST
        data = file.read_bytes()
        step = len(data) // 150
        for place in {*range(60), *range(0, len(data), step), *range(len(data) - 20, len(data))}:
            for mask in (1, 0x20, 0x80):
                changed = bytearray(data)
                changed[place] ^= mask
                file.write_bytes(changed)
                refuses(broken)

    def test_every_byte_of_a_file_counts(self, broken):
        for file in broken.iterdir():
            data = file.read_bytes()
            places = {0, 7, 8, 9, 40, len(data) // 3, len(data) // 2, len(data) - 1} if file.name != MANIFEST else {}
            for place in places:
                changed = bytearray(data)
                changed[place] ^= 1
                file.write_bytes(changed)
                refuses(broken, "was changed or truncated")
            file.write_bytes(data)

    @pytest.mark.parametrize(
        ("text", "match"),
        {
            "nothing": ("", "cannot be read"),
            "no JSON": ("{'format': 1}", "cannot be read"),
            "no text": ("\udcff", "cannot be read"),
            "a list": ("[]", "is not a manifest of avcg"),
            "a number": ("1", "is not a manifest of avcg"),
            "deep": ("[" * 100_000, "cannot be read"),
            "deep and whole": ('{"a":' * 50_000 + "1" + "}" * 50_000, "cannot be read|is not a manifest of avcg"),
            "a long number": ("9" * 10_000, "cannot be read"),
            "no format": ('{"version": 1}', "lacks 'format'"),
            "another format": (
                '{"format": "web", "version": 1}',
                "holds 'web', not 'avcg.artifact'. Give a folder that",
            ),
            "a format of another kind": ('{"format": 1, "version": 1}', "is not a manifest of avcg"),
            "a newer one": (
                '{"format": "avcg.artifact", "version": 4}',
                "version 4; this avcg reads version 3. Update",
            ),
            "an older one": (
                '{"format": "avcg.artifact", "version": 2}',
                "version 2; this avcg reads version 3. Fit the explainer again and save it",
            ),
            "version 0": ('{"format": "avcg.artifact", "version": 0}', "format version 0"),
            "a version that is true": (
                '{"format": "avcg.artifact", "version": true}',
                "is not a manifest of avcg: .*True",
            ),
            "no version": ('{"format": "avcg.artifact"}', "lacks 'version'"),
            "NaN": ('{"format": "avcg.artifact", "version": NaN}', "cannot be read"),
            "too large": ('{"format": "avcg.artifact", "version": 1e999}', "cannot be read"),
            "unsigned": ('{"format": "avcg.artifact", "version": 3}', "was changed after it was written"),
        }.values(),
    )
    def test_manifests_that_are_none(self, tmp_path, text, match):
        (tmp_path / MANIFEST).write_text(text, errors="surrogateescape")
        refuses(tmp_path, match)

    def test_the_same_said_otherwise_is_a_change(self, broken):
        file = broken / MANIFEST
        file.write_text(json.dumps(json.loads(file.read_text())))
        refuses(broken, "was changed after it was written. Save the explainer again")

    @pytest.mark.parametrize(
        "entry",
        [
            {"file": "../x/secret"}, {"file": ".."}, {"file": ""}, {"file": "/etc/hostname"}, {"file": "a\0b"},
            {"file": 3}, {"sha256": "0" * 64}, {"sha256": None}, {"sha256": ""}, {"bytes": -1}, {"bytes": "9"},
            {"bytes": True}, {"more": 1},
        ],
    )  # fmt: skip
    def test_files_of_other_folders_are_not_followed(self, broken, entry):
        manifest = json.loads((broken / MANIFEST).read_text())
        manifest["files"]["weights.safetensors"] |= entry
        sign(broken, manifest)
        refuses(broken, "was not written by AVCG.save|was changed or truncated|lacks")

    @pytest.mark.parametrize("name", ["../weights.safetensors", "a/b.onnx", "..", "", ".x", "weights", "Weights.x"])
    def test_names_with_other_folders_in_them_are_refused(self, broken, name):
        manifest = json.loads((broken / MANIFEST).read_text())
        entry = manifest["files"].pop("weights.safetensors")
        stem, _, kind = name.rpartition(".")
        manifest["files"][name] = {**entry, "file": f"{stem}-{entry['sha256'][:16]}.{kind}"}
        sign(broken, manifest)
        refuses(broken, "is not the file name of|was not written by AVCG.save")

    def test_one_file_alone_can_be_read(self, broken):
        manifest = read_manifest(broken, FORMAT, VERSION)
        assert read_file(broken, manifest, "weights.safetensors")[:1]
        assert set(read_folder(broken, FORMAT, VERSION, ["weights.safetensors"])[1]) == {"weights.safetensors"}
        with pytest.raises(ArtifactError, match=r"has no judges.onnx"):
            read_file(broken, manifest, "judges.onnx")


JUNK = [None, True, False, -1, 0, 1, 3, 10**9, 10**30, 1.5, -0.5, "", "x", "<U900000000", [], [1], {}, {"a": 1}]


def places(value, at=()):
    """All places in a value of JSON."""
    yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*at, key))


@st.composite
def mutated(draw, manifest):
    """A manifest with one thing in it changed, taken out, doubled or renamed; the deeper parts as often as the rest."""
    manifest = copy.deepcopy(manifest)
    content = {name: value for name, value in manifest.items() if name not in ("sha256", "made_with", "version")}
    by_part = {}
    for at in places(content):
        if at:
            by_part.setdefault((at[0], len(at)), []).append(at)
    at = draw(st.sampled_from(by_part[draw(st.sampled_from(sorted(by_part)))]))
    inside = manifest
    for key in at[:-1]:
        inside = inside[key]
    what = draw(st.sampled_from(["change", "change", "change", "remove", "double", "rename"]))
    if what == "remove":
        del inside[at[-1]]
    elif what == "double" and isinstance(inside, list):
        inside.append(copy.deepcopy(inside[at[-1]]))
    elif what == "rename" and isinstance(inside, dict):
        inside["renamed"] = inside.pop(at[-1])
    else:
        inside[at[-1]] = draw(st.sampled_from(JUNK))
    return manifest


MUTATIONS = {"several architectures": 80, "links": 50, "pictures": 40, "xgboost": 25, "a function": 25}


class TestWritersOfOtherMeans:
    @pytest.mark.parametrize("kind", MUTATIONS)
    def test_a_manifest_made_by_hand_is_refused_or_works(self, kind, stored, tmp_path):
        """Whoever signs anew can change what is answered, but never break what reads it."""
        path, left = stored(kind)
        shutil.copytree(path, tmp_path / "x")
        rows = made(kind)[1][:2]
        honest, refused = json.loads((path / MANIFEST).read_text()), []

        @settings(max_examples=MUTATIONS[kind])
        @over(mutated(honest))
        def check(manifest):
            sign(tmp_path / "x", manifest)
            try:
                loaded = avcg.load(tmp_path / "x", model=left)
            except (ArtifactError, DataError, SchemaError) as error:
                refused.append(str(error))
                return
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaded.generate(rows, effort="fast" if kind == "pictures" else "thorough").to_json()

        check()
        assert len(refused) > MUTATIONS[kind] // 3
        assert all(len(reason) > 20 for reason in refused)

    def test_a_generator_larger_than_its_numbers_takes_no_room(self, stored, tmp_path):
        shutil.copytree(stored("one network")[0], tmp_path / "x")
        manifest = json.loads((tmp_path / "x" / MANIFEST).read_text())
        for change in ({"layers": [10**6, 10**6]}, {"encoder": [10**9]}, {"layers": [0]}):
            sign(tmp_path / "x", {**manifest, "recipe": {**manifest["recipe"], **change}})
            refuses(tmp_path / "x", "fewer numbers than layers")
        sign(tmp_path / "x", {**manifest, "n_latent": 10**9})
        refuses(tmp_path / "x", "fewer numbers than layers")

    def test_weights_of_another_network_are_refused(self, stored, tmp_path):
        shutil.copytree(stored("one network")[0], tmp_path / "x")
        manifest, files = read_folder(tmp_path / "x", FORMAT, VERSION)
        arrays = read_tensors(files["weights.safetensors"])
        content, refused = {name: value for name, value in manifest.items() if name not in ("files", "sha256")}, []
        for i, (name, array) in enumerate(arrays.items()):
            others = (array[..., None], np.zeros(0, np.float32), None, np.full_like(array, 7), array.astype(np.int32))
            changed = {key: value for key, value in arrays.items() if key != name}
            changed |= {} if (other := others[i % 5]) is None else {name: other}
            write_folder(tmp_path / "x", content, {"weights.safetensors": write_tensors(changed)})
            try:
                avcg.load(tmp_path / "x")
                assert i % 5 >= 3, name  # a number may be another
            except (ArtifactError, DataError):
                refused.append(name)
        assert len(refused) > len(arrays) // 2
