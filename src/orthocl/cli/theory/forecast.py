"""`orthocl theory forecast`: what each task will do to earlier ones, and whether it did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import working
from orthocl.cli.theory.setup import AsJson, DataRoot, FigurePath, StreamName
from orthocl.cli.theory.tables import check_figure, emit, finish, number_or_none, progress_bar
from orthocl.errors import SettingsError

if not HELP_ONLY:
    from orthocl.methods import make_method
    from orthocl.nets import make_net
    from orthocl.streams import make
    from orthocl.theory import figures
    from orthocl.theory.judgement import Interval, Judgement, judge
    from orthocl.training import TrainSettings
    from orthocl.training.forecasting import Forecaster, train_with_forecasts
    from orthocl.training.theory_bridge import rule_of


def forecast(
    stream: StreamName = "rotated-mnist-mini",
    *,
    method: Annotated[str, Parameter(help="The method that is trained and measured.")] = "sgd",
    net: Annotated[str, Parameter(help="A network by name.")] = "mlp",
    epochs: Annotated[int, Parameter(help="Passes over each task.")] = 20,
    learning_rate: Annotated[float, Parameter(help="Of SGD.")] = 0.05,
    train_size: Annotated[int, Parameter(help="Training samples per task.")] = 200,
    loss: Annotated[
        Literal["cross-entropy", "squared"], Parameter(help="Of the training and of the forecast.")
    ] = "cross-entropy",
    tasks: Annotated[int, Parameter(help="Tasks of the stream to use.")] = 6,
    step: Annotated[float | None, Parameter(help="Degrees between tasks of a rotated stream.")] = None,
    rules: Annotated[
        tuple[Literal["sgd", "ogd", "ogd+", "gpm"], ...],
        Parameter(help="Rules to forecast, in addition to the trained method's own.", consume_multiple=True),
    ] = ("sgd", "ogd", "ogd+", "gpm"),
    seeds: Annotated[int, Parameter(help="Networks to train; intervals are over them.")] = 5,
    seed: Annotated[int, Parameter(help="The first seed of data, weights and batches.")] = 0,
    test: Annotated[bool, Parameter(help="Judge on test samples instead of training samples.")] = False,
    data_root: DataRoot = None,
    figure: FigurePath = None,
    json_output: AsJson = False,
) -> None:
    """Forecast, before each task is learnt, what it will do to earlier ones under SGD, OGD, OGD+ and GPM.

    Rows: for each task, the accuracy that earlier tasks are expected to lose when it is learnt, averaged over them and
    over the seeds, for each rule, and what the trained method actually lost. Then rank correlations over pairs of tasks
    of the forecast for the trained method's rule with what was measured, with 95 % intervals over seeds, next to two
    trivial predictors: how many tasks ago, and how many tasks come later; and given the former.

    Example: orthocl theory forecast permuted-mnist-mini --seeds 5 --figure forecast.pdf
    """
    check_figure(figure)
    if seeds < 1 or tasks < 2:
        raise SettingsError(f"expected at least one seed and two tasks, got {seeds} and {tasks}")
    rule = rule_of(make_method(method))
    chosen_rules = tuple(dict.fromkeys((*rules, rule)))
    options = {} if step is None else {"step": step}
    watchers = []
    with progress_bar("training and forecasting", seeds * tasks) as advance:
        for number in range(seeds):
            with working("reading the data"):
                made = make(
                    stream,
                    tasks=tasks,
                    seed=seed + number,
                    data_root=data_root,
                    train_size=train_size,
                    options=options,
                )
            chosen = make_method(method)
            watcher = Forecaster(
                TrainSettings(epochs=epochs, learning_rate=learning_rate),
                loss=loss,
                rules=chosen_rules,
                samples=train_size,
                memory_per_task=int(getattr(chosen, "memory_per_task", 100)),
                energy=float(getattr(chosen, "threshold", 0.97)),
                test=test,
                on_done=lambda task, number=number: advance(number * tasks + task),  # type: ignore[misc]
            )
            model = make_net(net, made.input_shape, made.heads, seed=seed + number)
            train_with_forecasts(model, made, chosen, watcher, seed=seed + number)
            watchers.append(watcher)
    pairs = [watcher.pairs(rule) for watcher in watchers]
    judged = {quantity: judge(pairs, quantity) for quantity in ("change", "drop")}
    rows = _rows(watchers, tasks, chosen_rules)
    extra: dict[str, Any] = {"method": method, "forecast_for": rule, "seeds": seeds}
    for quantity, found in judged.items():
        extra |= _judgement(quantity, found, json_output)
    if json_output:
        extra["pairs"] = [[asdict(pair) for pair in each] for each in pairs]
    emit(f"accuracy that earlier tasks lose, {stream}, {method}", rows, extra, json_output)
    finish(figure, lambda: figures.forecast_figure(pairs, judged, rows))


def _rows(watchers: Sequence[Forecaster], tasks: int, rules: Sequence[str]) -> list[dict[str, Any]]:
    """For each task from the second, the mean drop of earlier ones that each rule is expected to cause."""
    rows = []
    for task in range(2, tasks + 1):
        row: dict[str, Any] = {"task": task}
        for rule in rules:
            drops = [
                each.drop
                for one in watchers
                for each in one.forecasts
                if each.rule == rule and each.task == task
            ]
            row[rule] = sum(drops) / len(drops)
        measured = [
            drop for one in watchers for (number, _), (_, drop) in one.measured.items() if number == task
        ]
        row["measured"] = sum(measured) / len(measured)
        rows.append(row)
    return rows


def _judgement(quantity: str, found: Judgement, as_json: bool) -> dict[str, Any]:
    named = {
        f"{quantity}:_forecast": found.forecast,
        f"{quantity}:_lag_alone": found.lag,
        f"{quantity}:_number_of_later_tasks_alone": found.later,
        f"{quantity}:_forecast_given_lag": found.partial,
    }
    return {name: _shown(value, as_json) for name, value in named.items()}


def _shown(value: Interval, as_json: bool) -> Any:
    if as_json:
        return {name: number_or_none(number) for name, number in asdict(value).items()}
    return "nothing to predict" if math.isnan(value.mean) else str(value)
