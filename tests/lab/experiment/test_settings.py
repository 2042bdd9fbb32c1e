from __future__ import annotations

from dataclasses import replace

import pytest

from orthocl.checking import make_checked
from orthocl.errors import SettingsError
from orthocl.lab import MethodSettings, RunSettings, StreamSettings
from orthocl.lab.experiment.settings import run_id
from orthocl.lab.run.execute import identify, make_stream
from orthocl.training import TrainSettings


def test_defaults_spelled_out_are_the_same_run(tiny):
    short = tiny("ogd")
    assert run_id(short, "f") == run_id(short.resolved(), "f")
    assert run_id(short, "f") == run_id(tiny("ogd", settings={"memory_per_task": 100}), "f")


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"method": MethodSettings("ogd", {"memory_per_task": 99})},
        {"method": MethodSettings("ogd+")},
        {"stream": StreamSettings("rotated-mnist-mini", tasks=4)},
        {"stream": StreamSettings("rotated-mnist-mini", options={"step": 6.0})},
        {"train": TrainSettings(epochs=3)},
    ],
)
def test_every_setting_is_part_of_the_identity(tiny, change):
    run = tiny("ogd")
    assert run_id(run, "f") != run_id(replace(run, **change), "f")


def test_data_are_part_of_the_identity_and_labels_are_not(tiny):
    run = tiny()
    assert run_id(run, "f") != run_id(run, "g")
    assert run_id(run, "f") == run_id(replace(run, method_label="mine"), "f")


def test_whole_floats_and_integers_are_the_same_setting(tiny):
    ids = {run_id(tiny("ewc", settings={"strength": strength}), "f") for strength in (100, 100.0)}
    assert len(ids) == 1


def test_identify_uses_the_stream_fingerprint(tiny):
    run = tiny()
    stream = make_stream(run.resolved().stream)
    assert identify([run, replace(run, seed=9)]) == [
        run_id(run, stream.fingerprint),
        run_id(replace(run, seed=9), stream.fingerprint),
    ]


def test_round_trip_and_hash(tiny):
    run = tiny("ewc", settings={"strength": 3.0})
    again = RunSettings.from_dict(run.to_dict())
    assert again == run
    assert hash(again) == hash(run)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epoch": 3}, "did you mean 'epochs'"),
        ({"epochs": "3"}, "epochs must be int, got '3'"),
        ({"epochs": True}, "epochs must be int"),
        ({"learning_rate": "fast"}, "learning_rate must be float"),
        ({"optimizer": "adamw"}, "unknown train setting optimizer 'adamw'"),
        ({"epochs": 0}, "epochs must be at least 1"),
    ],
)
def test_wrong_train_settings_are_named(values, words):
    with pytest.raises(SettingsError, match=words):
        make_checked(TrainSettings, values, "train setting")


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("stream", {"name": "rotated-mnist-min"}, "did you mean 'rotated-mnist-mini'"),
        ("stream", {"name": "rotated-mnist-mini", "options": {"stp": 1.0}}, "did you mean 'step'"),
        ("method", {"name": "odg+"}, "did you mean 'ogd\\+'"),
        ("method", {"name": "ogd", "settings": {"memory": 3}}, "memory_per_task"),
        ("net", {"name": "mpl"}, "did you mean 'mlp'"),
        ("net", {"name": "mlp", "settings": {"hiden": [3]}}, "did you mean 'hidden'"),
        ("seed", "one", "seed must be int"),
        ("sed", 1, "did you mean 'seed'"),
    ],
)
def test_wrong_run_settings_are_named(tiny, part, value, words):
    values = tiny().to_dict() | {part: value}
    with pytest.raises(SettingsError, match=words):
        RunSettings.from_dict(values).resolved()


def test_a_run_needs_a_stream():
    with pytest.raises(SettingsError, match="needs a stream"):
        RunSettings.from_dict({"method": {"name": "sgd"}})
