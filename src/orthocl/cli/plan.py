"""`orthocl plan`: what a memory will cost, before training."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import asdict
from typing import Annotated, Literal

from cyclopts import App, Parameter

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import YesOption, agree, working
from orthocl.cli.output import draw, new_table, report, results, say, show, suggest
from orthocl.errors import SettingsError
from orthocl.formatting import size_text

if not HELP_ONLY:
    import torch
    from torch import nn

    from orthocl.checking import check_value
    from orthocl.cli.known_networks import KNOWN, without_numbers
    from orthocl.nets import make_net
    from orthocl.tangents.memory_plan import Plan
    from orthocl.tangents.plan_text import explicit_line, headline, madds_text
    from orthocl.tangents.planner import plan
    from orthocl.tangents.price_list import price_list
    from orthocl.tangents.verdict import PlainStep, moment_text, plain_step, times_plain, verdict

app = App(name="plan", help="Bytes and multiply-adds of a memory, before training.")
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
MOST_TASKS = 10_000
MOST_NUMBERS = 10**9
CARD = 24 * 10**9
TANGENTS = 1000
WHAT = {
    "dense": "as published: explicit gradients",
    "project": "factors, weights projected: any loop, any optimizer",
    "adapter": "factors and tangent adapter: SGD in the laboratory, elsewhere by engine='adapter'",
}


@app.default
def show_plan(
    network: str | None = None,
    /,
    *,
    input_shape: Annotated[
        str | None, Parameter(help="Shape of one input, such as 3,32,32 or 3x32x32.")
    ] = None,
    tasks: int | None = None,
    memory_per_task: int = 100,
    batch_size: int = 32,
    outputs: int = 10,
    hidden: Annotated[str | None, Parameter(help="Hidden units, such as 100,100.")] = None,
    multi_head: bool = False,
    variant: Literal["gtl", "ave", "all"] = "gtl",
    budget: Annotated[str | None, Parameter(help="Memory you can spend, such as 2GB.")] = None,
    samples_per_task: int | None = None,
    energy: float = 1.0,
    timed: Annotated[bool, Parameter(name="--time", help="Time plain steps on this machine.")] = True,
    table: Annotated[bool, Parameter(help="Price well-known networks instead.", negative="")] = False,
    yes: YesOption = False,
) -> None:
    """Show what remembering samples costs for each way of projecting, layer by layer.

    Example: orthocl plan mlp --input-shape 1,32,32 --tasks 15 --samples-per-task 60000

    With --table it prices ResNet-50, ViT-B/16 and LoRA on a decoder of 7 B weights: OGD, OGD+ and GPM with 1,000
    tangents, and how many tangents the memory of a card (--budget, by default 24GB) can hold. Nothing is trained.

    The exit code is 1 if nothing fits the budget.

    Args:
        network: a network of this library (mlp, lenet, ...) or your own as file.py:function or package.module:function,
            which takes input_shape and outputs, as far as it needs them, and returns the model.
        input_shape: shape of one input.
        tasks: number of tasks.
        memory_per_task: samples remembered per task.
        batch_size: samples per training step.
        outputs: outputs of the network (of each head).
        hidden: hidden units of the library's networks.
        multi_head: one head per task; heads are not protected.
        variant: remembered outputs: the label's logit, the mean logit, all logits.
        budget: bytes that may be used.
        samples_per_task: training samples of a task, to price the cached input kernel.
        energy: share of the tangents' energy to keep; 1.0 is exact.
        timed: time three steps of plain SGD, to say how long a protected one takes.
        table: price well-known networks instead.
        yes: do not ask before something of an unlikely size.
    """
    if table:
        print_table(CARD if budget is None else parse_size(budget), batch_size)
        return
    if network is None or input_shape is None or tasks is None:
        raise SettingsError(
            "expected a network, --input-shape and --tasks, such as: orthocl plan mlp --input-shape 1,32,32 --tasks 15 "
            "(or --table alone)"
        )
    shape = [_positive(part, "input shape") for part in re.split("[,x]", input_shape)]
    counts = {"tasks": tasks, "outputs": outputs, "samples-per-task": samples_per_task or 1}
    for name, value in counts.items():
        check_value(f"--{name}", value, int, 1)
    if math.prod(shape) > MOST_NUMBERS:
        raise SettingsError(
            f"an input of shape {input_shape} holds {math.prod(shape):.3g} numbers: is that a slip?"
        )
    if tasks > MOST_TASKS:
        agree(f"plan for {tasks:,} tasks" + ", each with its own head" * multi_head, yes)
    model = _model(
        network, shape, {str(t): outputs for t in range(1, (tasks if multi_head else 1) + 1)}, hidden
    )
    with working("planning"):
        found = plan(
            model,
            torch.zeros(1, *shape),
            tasks=tasks,
            memory_per_task=memory_per_task,
            batch_size=batch_size,
            variant=variant,
            budget=None if budget is None else parse_size(budget),
            samples_per_task=samples_per_task,
            energy=energy,
        )
        plain = plain_step(model, torch.zeros(1, *shape), batch_size, timed=timed)
    print_plan(found, plain)
    report(
        **asdict(found),
        choice=found.choice,
        plain_step=asdict(plain),
        times_plain=times_plain(found, plain),
        verdict=verdict(found, plain),
        advice=found.advice(),
    )
    if found.advice():
        sys.exit(1)


def _model(network: str, shape: list[int], heads: dict[str, int], hidden: str | None) -> nn.Module:
    settings: dict[str, object] = {}
    if hidden is not None:
        units = [_positive(part, "hidden units") for part in hidden.split(",")]
        settings["hidden"] = units[0] if network == "lenet" else units
    return make_net(network, shape, heads, settings)


def _positive(text: str, what: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text.strip()) or int(text) < 1:
        raise SettingsError(
            f"expected {what} as positive numbers separated by commas, got {text.strip()[:40]!r}"
        )
    return int(text)


def parse_size(text: str) -> int:
    """Bytes from "2GB", "500 MB" or a plain number.

    >>> parse_size("1.5GB")
    1500000000
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kKmMgGtT]?[bB]?)\s*", text)
    unit = match.group(2).upper() if match else ""
    unit = unit if unit in UNITS else f"{unit}B"
    number = match.group(1) if match else ""
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]*)?|\.[0-9]+", number):
        raise SettingsError(f"expected a size such as 500MB or 2GB, got {text[:40]!r}")
    return int(float(number) * UNITS[unit])


def print_table(card: int, batch_size: int) -> None:
    """Prices of well-known networks, from their shapes."""
    numbers = (
        "protected",
        f"{TANGENTS:,} tangents",
        "multiply-adds a step",
        f"tangents in {size_text(card)}",
    )
    names = new_table("network", numbers[0], "way", *numbers[1:], right=numbers)
    rows = []
    for name in KNOWN:
        model, example = without_numbers(name)
        weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
        found = price_list(model, example, rows=TANGENTS, card=card, batch_size=batch_size)
        rows += [{"network": name, "weights": weights, **asdict(price)} for price in found]
        for place, price in enumerate(found):
            names.add_row(
                name if place == 0 else "",
                f"{weights / 1e6:,.1f} M" if place == 0 else "",
                price.way,
                size_text(price.nbytes),
                f"{price.madds / 1e9:,.1f} G",
                "all" if price.most is None else f"{price.most:,}",
            )
    show(names, rows)
    say(
        "Sizes of bases (energy below 1, GPM) are estimates, good to a factor of a few; everything else is exact."
    )
    suggest("orthocl plan my_model.py:build --input-shape 3x32x32 --tasks 10")


def print_plan(found: Plan, plain: PlainStep) -> None:
    """Tables for people."""
    console = results()
    say(headline(found))
    layers = new_table(
        "layer", "weights", "stored as", "bytes a row", "step", right=["weights", "bytes a row"]
    )
    for layer in found.layers:
        step = "adapter" if layer.adapted else "moved directly" + ", by output" * layer.sorted
        layers.add_row(layer.name, f"{layer.parameters:,}", layer.kind, size_text(layer.bytes_per_row), step)
    draw(layers)
    numbers = ("memory", "multiply-adds a step", "x SGD")
    ways = new_table("way", *numbers, "what it is", right=numbers)
    seconds = "" if plain.seconds is None else f", {moment_text(plain.seconds)} measured here"
    ways.add_row("plain", "", madds_text(plain.madds), "1", f"SGD alone{seconds}")
    for path, cost in found.costs.items():
        mark = "[bold green]" if path == found.choice else ""
        times = 1 + cost.madds / max(plain.madds, 1)
        cells = (path, size_text(cost.nbytes), madds_text(plain.madds + cost.madds), f"{times:.3g}")
        ways.add_row(*(f"{mark}{cell}" for cell in cells), WHAT[path])
    draw(ways)
    for line in verdict(found, plain):
        say(line)
    if found.cache_bytes:
        room = "fits" if found.caches else "does not fit the budget"
        console.print(
            f"\nCaching the first layer's input kernel for a whole task would take {size_text(found.cache_bytes)} more "
            "(of disk instead, with ORTHOCL_SCRATCH set to a folder) and save "
            f"{found.cache_saves / 1e6:,.1f} M multiply-adds a step: {room}.",
            highlight=False,
        )
    if found.error_mean is not None:
        console.print(
            f"\nRelative errors of the examples' tangents: mean {found.error_mean:.3g}, worst {found.error_worst:.3g}.",
            highlight=False,
        )
    for line in explicit_line(found):
        console.print(f"\n{line}", highlight=False)
    for number, line in enumerate(found.advice()):
        console.print(f"[red]Nothing fits: {line}[/]" if number == 0 else f"  - {line}", highlight=False)
    engine = ', engine="adapter"' if found.choice == "adapter" else ""
    suggest(f"orthocl.attach(orthocl.OGDPlus(memory_per_task=...{engine}), model, optimizer) in your loop")
