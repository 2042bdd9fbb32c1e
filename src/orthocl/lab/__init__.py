"""The laboratory: experiments that resume, sweep and run on many machines."""

from orthocl.lab.experiment import Experiment, load_experiment, make_experiment
from orthocl.lab.keeper import InterruptedRun
from orthocl.lab.laboratory import Results, forecast, run_experiment
from orthocl.lab.record import Record, Result
from orthocl.lab.run import RunObserver, RunOptions, execute
from orthocl.lab.settings import MethodSettings, NetSettings, RunSettings, StreamSettings
from orthocl.lab.store import Store
from orthocl.lab.table import make_table

__all__ = [
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
    "execute",
    "forecast",
    "load_experiment",
    "make_experiment",
    "make_table",
    "run_experiment",
]
