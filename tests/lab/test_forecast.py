from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from orthocl.lab import Experiment, RunOptions, forecast, run_experiment
from orthocl.lab.experiment.settings import StreamSettings
from orthocl.lab.forecast import Excerpt, Pace, Stopwatch
from orthocl.lab.laboratory import ignore
from orthocl.lab.run.execute import build_learner, identify, make_stream
from orthocl.training import train


def test_what_is_there_takes_no_time_and_a_record_tells_the_time_of_the_rest(store, tiny):
    runs = [tiny(), tiny("si"), tiny("sgd", train={"epochs": 4})]
    run_experiment(Experiment("one", (runs[0],)), store, jobs=0, on_event=ignore)
    done, probed, known = forecast(runs, store)
    assert (done.state, done.seconds, done.basis) == ("finished", 0.0, "")
    assert (probed.state, probed.basis) == ("new", "probe")
    assert 0 < probed.low < probed.seconds < probed.high
    assert probed.count == 2 * 19  # the second and the third task have 20 batches each
    seconds = store.record(identify(runs[:1])[0]).metric("seconds")
    assert (known.basis, known.count) == ("record", 1)
    assert known.seconds == pytest.approx(2 * seconds)  # twice the epochs
    assert known.low < known.seconds < known.high, "one record says nothing of how much they scatter"


@pytest.fixture
def fill(store, make_record, tiny):
    """Writes records of EWC with the given total times: two tasks of 40 steps each."""

    def write(times, stream="rotated-mnist-mini"):
        for seed, seconds in enumerate(times):
            settings = tiny("ewc", seed)
            settings = replace(settings, stream=replace(settings.stream, name=stream)).resolved()
            record = make_record(
                "ewc",
                id=f"{stream}-{seed}",
                settings=settings,
                provenance={"seconds": {"total": seconds}, "finished": "2020-01-01T00:00:00Z"},
            )
            store.write_record(record)

    return write


def test_one_record_of_a_busy_hour_has_no_say(store, tiny, fill):
    fill([8.0, 8.8, 4000.0, 7.2, 8.0])
    (found,) = forecast([tiny("ewc", seed=77)], store)  # three tasks instead of two
    assert (found.basis, found.count) == ("record", 5)
    assert found.seconds == pytest.approx(8.0 * 3 / 2)
    assert (found.low, found.high) == (pytest.approx(8.0 * 3 / 2), pytest.approx(8.8 * 3 / 2))


def test_records_of_the_same_stream_count_before_those_of_others(store, tiny, fill):
    fill([80.0, 80.0], stream="permuted-mnist-mini")
    (other,) = forecast([tiny("ewc", seed=77)], store)
    assert other.seconds == pytest.approx(80.0 * 3 / 2)
    assert "other streams" in other.note
    assert other.low < other.seconds < other.high
    fill([8.0])
    (own,) = forecast([tiny("ewc", seed=77)], store)
    assert (own.seconds, own.note) == (pytest.approx(8.0 * 3 / 2), "")


def test_records_of_another_batch_size_do_not_count(store, tiny, fill):
    fill([8.0, 8.0])
    (found,) = forecast([tiny("ewc", train={"batch_size": 20, "learning_rate": 1e-4})], store)
    assert found.basis == "probe"


def test_what_cannot_be_told_says_why(store, tiny, tmp_path):
    missing = replace(tiny(), stream=StreamSettings("rotated-mnist"))
    diverging = tiny(train={"learning_rate": 1e30})
    options = RunOptions(data_root=str(tmp_path / "empty"))
    absent, unstable = forecast([missing, diverging], store, options)
    assert (absent.state, absent.seconds) == (None, None)
    assert "orthocl data fetch" in absent.note
    assert (unstable.state, unstable.seconds) == ("new", None)
    assert "smaller learning rate" in unstable.note


def test_the_pace_counts_steps_tests_tasks_and_samples(tiny):
    settings = tiny("sgd", train={"evaluate_every": 15})  # 3 tasks of 200 samples, 2 epochs in batches of 10
    stream = make_stream(settings.stream)

    def seconds(**rates):
        return Pace("probe", 1, 1.0, 1.0, **{"step": 0.0} | rates).seconds(settings, stream)

    assert seconds(step=1.0) == 3 * 40
    assert seconds(slower=1.0) == 40  # in the third task only
    assert seconds(task=1.0) == 3
    assert seconds(remembered=1.0) == 3 * 200
    rows = 1 + 3 + 3 * (40 // 15)  # at the start, after each task, and within
    assert seconds(tested=1.0) == rows * 3 * 100


def test_an_excerpt_has_the_first_samples_of_the_first_tasks(tiny):
    stream = make_stream(tiny().stream)
    excerpt = Excerpt.of(stream, tasks=2, train=7, test=5)
    assert (len(excerpt), excerpt.heads, excerpt.input_shape) == (2, stream.heads, stream.input_shape)
    for task, whole in zip(excerpt, stream, strict=False):
        assert (len(task.train), len(task.test)) == (7, 5)
        inputs, targets = task.train.samples()
        assert torch.equal(inputs, whole.train.inputs(slice(0, 7)))
        assert torch.equal(targets, whole.train.targets[:7])
        some = torch.tensor([6, 0])
        assert torch.equal(task.train.inputs(some), whole.train.inputs(some))
        assert torch.equal(task.train.inputs(slice(2, 4)), whole.train.inputs(slice(2, 4)))
    assert len(Excerpt.of(stream, tasks=99, train=10**9, test=1)[0].train) == 200


def test_the_stopwatch_times_every_step_of_a_task_but_its_first(tiny, monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr("time.process_time", lambda: float(next(ticks)))
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    settings = tiny().resolved()
    stream = Excerpt.of(make_stream(settings.stream), tasks=2, train=40, test=5)
    watch = Stopwatch()
    once = replace(settings.train, epochs=1)
    train(build_learner(settings, stream), stream, once, observers=[watch])
    assert watch.steps == [[1.0] * 4] * 2
    assert watch.steps_of(1) == watch.steps_of(9) == [1.0] * 3
    assert (watch.first_test, watch.last_task) == (1.0, 5.0)  # four steps and the test
    assert watch.rest(step=1.0) == 0.0
    assert watch.rest(step=0.5) == 2.0
    assert (watch.samples, watch.tested) == (40, 10)


def test_the_timed_steps_warn_of_nothing(store, tiny, monkeypatch, recwarn):
    """A few steps of two tasks say nothing of the run itself."""

    def warning(*arguments):
        warnings.warn("remembered outputs have changed", stacklevel=1)
        return build_learner(*arguments)

    monkeypatch.setitem(Stopwatch.__init__.__globals__, "build_learner", warning)
    (found,) = forecast([tiny("si")], store)
    assert (found.basis, len(recwarn)) == ("probe", 0)


@pytest.mark.parametrize(("third", "slower"), [(1.5, 0.5), (1.04, 0.0), (0.5, 0.0)])
def test_steps_that_get_slower_with_the_tasks_are_extrapolated(third, slower, store, tiny, monkeypatch):
    def training(*arguments):
        watch = Stopwatch()
        watch.steps = [[9.0] * 2, [7.0, 1.0], [7.0, third]]
        return watch

    monkeypatch.setitem(Stopwatch.__init__.__globals__, "_timed_training", training)
    (found,) = forecast([tiny("ogd")], store)
    assert found.seconds == pytest.approx(3 * 40 + slower * 40)


def test_a_task_of_one_step_is_forecast(store, tiny):
    (found,) = forecast([tiny("ogd", train={"batch_size": 200})], store)
    assert found.basis == "probe"
    assert found.seconds > 0
