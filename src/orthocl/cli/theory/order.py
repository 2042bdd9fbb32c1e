"""`orthocl theory order`: the order of tasks with the smallest complexity proxy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import working
from orthocl.cli.theory.setup import (
    DEFAULT_STREAM,
    AsJson,
    FigurePath,
    MemoryOption,
    OrderSetup,
    Rule,
    StreamName,
    load_tasks,
    make_kernel,
)
from orthocl.cli.theory.tables import check_figure, emit, finish, progress_bar
from orthocl.formatting import counted

if not HELP_ONLY:
    from torch import Tensor

    from orthocl.theory import Curriculum, Order, curriculum_claims, figures


def order(
    stream: StreamName = DEFAULT_STREAM,
    *,
    rule: Rule = "ogd",
    memory: MemoryOption = None,
    search: Annotated[
        Literal["auto", "subsets", "exhaustive", "beam"], Parameter(help="How to search.")
    ] = "auto",
    setup: OrderSetup | None = None,
    figure: FigurePath = None,
    json_output: AsJson = False,
) -> None:
    """Find the order of tasks with the smallest complexity proxy R_T, and compare it with simple recipes.

    R_T says how much is explored on the way, not how good the result is: its correlation with the final error has
    either sign, and where the search is exact through subsets the final function is the same in every order. The output
    says which it is.
    Exact for up to 6 tasks, and for OGD that remembers everything, without ridge, when one function can fit all
    tasks at once; otherwise a search. The column says which it was.

    Example: orthocl theory order permuted-mnist-mini --tasks 8 --samples 20
    """
    setup = setup or OrderSetup()
    check_figure(figure)
    tasks = load_tasks(stream, setup)
    kernel = make_kernel(setup, tasks)
    data = [(task.inputs, task.targets) for task in tasks]
    with progress_bar("searching") as advance:
        curriculum = Curriculum(kernel, data, rule=rule, ridge=setup.ridge, memory=memory)
        best = curriculum.best_order(search, progress=advance)
    recipes, table = _compare(curriculum, len(tasks))
    orders = [best, *recipes]
    rows = [
        {
            "order": each.search,
            "tasks": list(each.tasks),
            "R_T": each.complexity,
            "above_smallest": each.complexity / best.complexity - 1 if best.complexity > 0 else 0.0,
            "exact": each.exact,
        }
        for each in orders
    ]
    extra: dict[str, Any] = {"dissimilarity": table.tolist(), "rule": rule, "ridge": setup.ridge}
    extra["what_is_compared"] = (
        "R_T; the final function is the same in every order"
        if curriculum.same_result()
        else "R_T, a proxy: a smaller one need not mean a smaller error"
    )
    if len(tasks) >= 2:
        with working("comparing ABAB with AABB"):
            claims = curriculum_claims(kernel, data[:2], rule=rule, ridge=setup.ridge, memory=memory)
        extra["ABAB"], extra["AABB"] = claims.alternating, claims.blocked
        extra["the_paper's_claim_that_alternating_two_tasks_costs_more"] = claims.verdict
    title = f"orders of {counted(len(tasks), 'task')}, {stream}, {rule}, ridge {setup.ridge:g}"
    emit(title, rows, extra, json_output)
    finish(figure, lambda: figures.order_figure(table, orders))


def _compare(curriculum: Curriculum, tasks: int) -> tuple[list[Order], Tensor]:
    """The orders of simple recipes, and the dissimilarities between tasks."""
    given = tuple(range(1, tasks + 1))
    recipes: list[Callable[[], Order]] = [
        lambda: Order(given, curriculum.complexity(given), "as given"),
        curriculum.greedy_order,
        curriculum.neighbours_order,
        lambda: curriculum.neighbours_order(similar=False),
    ]
    orders = []
    with progress_bar("comparing", len(recipes) + 1) as advance:
        for recipe in recipes:
            orders.append(recipe())
            advance(len(orders))
        return orders, curriculum.dissimilarity_matrix()
