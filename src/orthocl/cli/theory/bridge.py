"""`orthocl theory bridge`: what the theory says about a network in training."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import working
from orthocl.cli.theory.setup import AsJson, DataRoot, FigurePath, StreamName
from orthocl.cli.theory.tables import check_figure, emit, finish, number_or_none, progress_bar

if not HELP_ONLY:
    from orthocl.methods import make_method
    from orthocl.nets import make_net
    from orthocl.streams import make
    from orthocl.theory import figures
    from orthocl.theory.bridge import TaskReport
    from orthocl.training import TrainSettings
    from orthocl.training.theory_bridge import train_with_theory


def bridge(
    stream: StreamName = "rotated-mnist-mini",
    *,
    method: Annotated[
        str, Parameter(help="A method by name; predictions are for its own rule, or for plain SGD.")
    ] = "sgd",
    net: Annotated[str, Parameter(help="A network by name.")] = "mlp",
    epochs: Annotated[int, Parameter(help="Passes over each task.")] = 20,
    learning_rate: Annotated[float, Parameter(help="Of SGD.")] = 0.05,
    train_size: Annotated[int | None, Parameter(help="Training samples per task; all by default.")] = 300,
    loss: Annotated[
        Literal["squared", "cross-entropy"], Parameter(help="Squared is the theory's own.")
    ] = "squared",
    tasks: Annotated[int, Parameter(help="Tasks of the stream to use.")] = 5,
    samples: Annotated[int, Parameter(help="Samples per task for the theory (all logits of each).")] = 300,
    ridge: Annotated[
        float | None, Parameter(help="Predict with one ridge regression instead of steps of descent.")
    ] = None,
    seed: Annotated[int, Parameter(help="Seed of data, weights and batches.")] = 0,
    data_root: DataRoot = None,
    figure: FigurePath = None,
    json_output: AsJson = False,
) -> None:
    """Train a network and compare dissimilarity, predicted forgetting and tangent drift with what happened.

    Columns: S per sample is the dissimilarity to what came before, max lr the largest rate at which full-batch
    descent on the summed squares is stable, tangent cosine and growth compare the tangents after the task with
    those after the last one (1: they did not move), forgetting is the accuracy lost on its training samples, and
    predicted is what the linearised network loses, learning each task with the same loss for as many steps.

    Example: orthocl theory bridge --method ogd --figure bridge.svg
    """
    check_figure(figure)
    with working("reading the data"):
        made = make(stream, tasks=tasks, seed=seed, data_root=data_root, train_size=train_size)
    model = make_net(net, made.input_shape, made.heads, seed=seed)
    settings = TrainSettings(epochs=epochs, learning_rate=learning_rate)
    with progress_bar("training and comparing", 2 * len(made)) as advance:
        report, _ = train_with_theory(
            model,
            made,
            make_method(method),
            settings,
            loss=loss,
            samples=samples,
            ridge=ridge,
            seed=seed,
            on_task=advance,
            on_theory=lambda task: advance(len(made) + task),
        )
    rows = [_row(task) for task in report.tasks]
    extra: dict[str, Any] = {
        "measured_change_over_predicted_(median)": number_or_none(report.ratio()),
        "correlation_of_log_changes": number_or_none(report.correlation()),
        "pairs": [asdict(pair) for pair in report.pairs],
        "method": method,
    }
    emit(f"theory and practice, {stream}, {method}", rows, extra, json_output)
    finish(figure, lambda: figures.bridge_figure(report))


def _row(task: TaskReport) -> dict[str, Any]:
    return {
        "task": task.task,
        "S_per_sample": task.dissimilarity,
        "max_lr": task.learning_rate,
        "tangent_cosine": task.tangent_cosine,
        "tangent_growth": task.tangent_growth,
        "forgetting": task.forgetting,
        "predicted": task.predicted_forgetting,
    }
