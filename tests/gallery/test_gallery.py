"""Your method, your network and your data in the laboratory, in a fresh folder, as a new user would.

The same on Ray and Slurm: tests/cluster.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orthocl.lab import Store


def orthocl(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "orthocl", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory, gallery) -> Path:
    """A folder in which the experiment was run by two processes, and its parts deleted afterwards."""
    place = tmp_path_factory.mktemp("gallery")
    gallery.write_parts(place)
    (place / "gallery.toml").write_text(gallery.EXPERIMENT)
    orthocl(place, "run", "gallery.toml", "--jobs", "2")
    gallery.remove_parts(place)
    return place


def test_records_hold_the_truth(folder):
    records = list(Store(folder / "orthocl-store").records())
    assert len(records) == 12
    labels = {(r.settings.stream_label, r.settings.method_label) for r in records}
    assert labels == {(s, m) for s in ("birds", "arrays", "clouds") for m in ("leash", "ogd")}
    birds = next(r for r in records if r.settings.stream_label == "birds")
    assert birds.settings.stream.options["folder"] == "photos"
    assert str(folder) not in birds.to_json()  # no folder of this machine
    assert birds.stream["tasks"] == ["classes class-0, class-1", "classes class-2, class-3"]
    clouds = next(r for r in records if r.settings.stream_label == "clouds")
    assert clouds.settings.stream.name == "my_data.py:make"
    assert clouds.settings.stream.options == {"shift": 2.0}
    assert len(clouds.settings.stream.source) == 16
    assert clouds.settings.net.settings == {"width": 6}


def test_sources_are_kept_with_the_record(folder):
    store = Store(folder / "orthocl-store")
    record = next(r for r in store.records() if r.settings.method_label == "leash")
    kept = store.folder(record.id) / "sources"
    assert {"my_method.py", "strengths.py", "my_net.py"} <= {path.name for path in kept.iterdir()}
    assert (kept / "strengths.py").read_text() == "STRENGTH = 0.1\n"


def test_the_store_is_read_without_the_parts(folder):
    listed = orthocl(folder, "runs", "list", "--stream", "birds", "--method", "leash")
    assert listed.count("finished") == 2
    ids = [r.id for r in Store(folder / "orthocl-store").records()][:2]
    assert ids[0][:8] in orthocl(folder, "runs", "compare", *ids)
    assert "settings" in orthocl(folder, "runs", "show", ids[0])
    orthocl(folder, "report", "--out", "report.html")
    page = (folder / "report.html").read_text()
    assert "leash" in page
    assert "birds" in page
    exported = orthocl(folder, "runs", "export", "runs.csv")
    assert "12" in exported
    assert len((folder / "runs.csv").read_text().splitlines()) == 13


def test_flags_take_the_same_specs(tmp_path, gallery):
    gallery.write_parts(tmp_path)
    arguments = [
        "--stream",
        "tasks.npz",
        "--stream",
        "photos",
        "--method",
        "my_method.py:Leash",
        "--seed",
        "1",
    ]
    net = ["--net", "my_net.py:build", "--set", "train.epochs=1", "--jobs", "0"]
    text = orthocl(tmp_path, "run", *arguments, *net, "--table", "csv")
    assert "tasks,leash" in text
    assert "photos,leash" in text


def test_check_says_how_to_go_on(tmp_path, gallery):
    gallery.write_parts(tmp_path)
    text = orthocl(tmp_path, "check", "my_method.py")
    assert "all checks passed" in text
    assert "next: orthocl run --stream rotated-mnist-mini --method my_method.py:Leash" in text


def test_an_edited_part_is_another_run(tmp_path, gallery):
    gallery.write_parts(tmp_path)
    arguments = ["--stream", "tasks.npz", "--method", "my_method.py:Leash", "--seed", "1"]
    short = ["--set", "train.epochs=1", "--jobs", "0"]
    orthocl(tmp_path, "run", *arguments, *short)
    (tmp_path / "strengths.py").write_text("STRENGTH = 0.2\n")
    orthocl(tmp_path, "run", *arguments, *short)
    assert len(list(Store(tmp_path / "orthocl-store").records())) == 2
