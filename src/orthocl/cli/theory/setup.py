"""What the theory commands compute on: options, data and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import working
from orthocl.cli.theory.tables import progress_bar
from orthocl.errors import SettingsError

if not HELP_ONLY:
    import torch

    from orthocl.nets import MLP, make_net
    from orthocl.streams import make
    from orthocl.theory import EmpiricalNTK, InfiniteWidthNTK, Kernel, Solution, solve_stream
    from orthocl.theory.regression_targets import RegressionTask, regression_tasks

Rule = Annotated[
    Literal["sgd", "ogd"], Parameter(help="Gradient descent, or projected away from the memory.")
]
MemoryOption = Annotated[int | None, Parameter(help="Samples per task to remember; all by default.")]
FigurePath = Annotated[Path | None, Parameter(help="Save a figure here: .svg, .pdf or .png.")]
AsJson = Annotated[bool, Parameter(name="--json", help="Print JSON instead of tables.", negative="")]
StreamName = Annotated[
    str,
    Parameter(help="A stream: a name, a folder of images, an .npz file, or file.py:function."),
]
DEFAULT_STREAM = "rotated-mnist-mini"
DataRoot = Annotated[
    Path | None,
    Parameter(help="Folder with the data sets; by default $ORTHOCL_DATA, or the user's cache folder."),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Setup:
    """What the theory is computed on."""

    tasks: Annotated[int, Parameter(help="Tasks of the stream to use.")] = 5
    samples: Annotated[int, Parameter(help="Training samples per task.")] = 100
    test_samples: Annotated[int, Parameter(help="Test samples per task.")] = 500
    target: Annotated[str, Parameter(help="parity, one-hot, or a class number against the rest.")] = "parity"
    kernel: Annotated[Literal["infinite", "empirical"], Parameter(help="Infinitely wide, or a real MLP.")] = (
        "infinite"
    )
    depth: Annotated[int, Parameter(help="Hidden layers.")] = 2
    width: Annotated[int, Parameter(help="Hidden units of the MLP (empirical kernel).")] = 100
    net: Annotated[
        str | None,
        Parameter(help="A network instead of the MLP (empirical kernel): a name or file.py:function."),
    ] = None
    bias_variance: Annotated[float, Parameter(help="Of the infinitely wide network.")] = 0.1
    ridge: Annotated[float, Parameter(help="lambda of the loss.")] = 0.1
    seed: Annotated[int, Parameter(help="Seed of data and weights.")] = 0
    data_root: DataRoot = None


# Other defaults need separate classes: options missing on the command line are filled in from the class.
@Parameter(name="*")
@dataclass(frozen=True)
class OrderSetup(Setup):
    """What orders are compared on: without ridge, where the search is exact."""

    samples: Annotated[int, Parameter(help="Training samples per task.")] = 30
    test_samples: Annotated[int, Parameter(parse=False)] = 1
    ridge: Annotated[float, Parameter(help="lambda of the loss.")] = 0.0


@Parameter(name="*")
@dataclass(frozen=True)
class OverlaySetup(Setup):
    """What networks are trained on: little, since descent runs to convergence."""

    tasks: Annotated[int, Parameter(help="Tasks of the stream to use.")] = 2
    samples: Annotated[int, Parameter(help="Training samples per task.")] = 30
    test_samples: Annotated[int, Parameter(help="Test samples where outputs are compared.")] = 100
    kernel: Annotated[Literal["infinite", "empirical"], Parameter(parse=False)] = "infinite"
    width: Annotated[int, Parameter(parse=False)] = 100
    net: Annotated[str | None, Parameter(parse=False)] = None
    depth: Annotated[int, Parameter(help="Hidden layers.")] = 1
    ridge: Annotated[float, Parameter(help="lambda of the loss.")] = 1.0


def load_tasks(stream: str, setup: Setup) -> list[RegressionTask]:
    """The stream's tasks with numbers to fit."""
    with working("reading the data"):
        made = make(stream, tasks=setup.tasks, seed=setup.seed, data_root=setup.data_root)
        return regression_tasks(made, setup.samples, setup.target, setup.test_samples, setup.seed)


def make_kernel(setup: Setup, tasks: Sequence[RegressionTask]) -> Kernel:
    """The kernel of these options, for these tasks."""
    if setup.kernel == "infinite":
        if setup.net is not None:
            raise SettingsError(
                "--net only has an effect with --kernel empirical: give that too, or leave it out"
            )
        return InfiniteWidthNTK(setup.depth, bias_variance=setup.bias_variance)
    outputs = 1 if tasks[0].targets.ndim == 1 else tasks[0].targets.shape[1]
    shape = tuple(tasks[0].inputs.shape[1:])
    if setup.net is not None:
        own = make_net(setup.net, shape, {"main": outputs}, seed=setup.seed).to(tasks[0].inputs.dtype)
        return EmpiricalNTK(own, "scalar" if outputs == 1 else "all")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.seed)
        model = MLP(shape, hidden=(setup.width,) * setup.depth, outputs=outputs)
    return EmpiricalNTK(model, "scalar" if outputs == 1 else "all")


def solve_tasks(
    setup: Setup, tasks: Sequence[RegressionTask], rule: Literal["sgd", "ogd"], memory: int | None
) -> Solution:
    """The closed form of these tasks, with a progress bar."""
    with progress_bar("solving", len(tasks)) as advance:
        return solve_stream(
            make_kernel(setup, tasks),
            [(task.inputs, task.targets) for task in tasks],
            rule=rule,
            ridge=setup.ridge,
            memory=memory,
            progress=advance,
        )
