"""The laboratory: experiments that resume, sweep and run on many machines."""

from orthocl.lab.compare import Comparison, compare
from orthocl.lab.experiment.experiment import Experiment, load_experiment, make_experiment
from orthocl.lab.experiment.settings import MethodSettings, NetSettings, RunSettings, StreamSettings
from orthocl.lab.forecast import forecast
from orthocl.lab.laboratory import Results, run_experiment
from orthocl.lab.reporting.table import make_table
from orthocl.lab.run.checkpointer import InterruptedRun
from orthocl.lab.run.execute import RunObserver, RunOptions, execute
from orthocl.lab.store.record import Record, Result
from orthocl.lab.store.store import Store

__all__ = [
    "Comparison",
    "Experiment",
    "InterruptedRun",
    "MethodSettings",
    "NetSettings",
    "Record",
    "Result",
    "Results",
    "RunObserver",
    "RunOptions",
    "RunSettings",
    "Store",
    "StreamSettings",
    "compare",
    "execute",
    "forecast",
    "load_experiment",
    "make_experiment",
    "make_table",
    "run_experiment",
]
