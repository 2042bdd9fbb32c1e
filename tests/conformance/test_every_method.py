"""Every registered method passes every check that `orthocl check` runs on a user's own."""

import pytest

from orthocl.methods import METHODS
from orthocl.storage import tensor_bytes
from orthocl.testing.conformance import CHECKS, small
from orthocl.testing.tiny_problem import OPTIMIZERS, attached, model_for, problem

CASES = (
    {name: (kind, {}) for name, kind in METHODS.items()}
    | {
        f"{name} by the {engine} engine": (METHODS[name], {"engine": engine})
        for name in ("ogd", "ogd+", "pca-ogd")
        for engine in ("adapter", "project")
    }
    | {f"{name} compressed": (METHODS[name], {"energy": 0.9}) for name in ("ogd", "ogd+", "pca-ogd")}
)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", CASES)
def test_method_passes(case: str, check: str, monkeypatch: pytest.MonkeyPatch):
    kind, fixed = CASES[case]
    if fixed.get("engine") == "adapter":  # it serves plain SGD, and refuses the others
        for module in ("conformance", "laws", "tiny_problem"):
            served = {name: make for name, make in OPTIMIZERS.items() if not name.startswith("Adam")}
            monkeypatch.setattr(f"orthocl.testing.{module}.OPTIMIZERS", served)
    # A check raises NonConformingError with the reason when it fails.
    CHECKS[check](lambda **settings: small(kind, {**fixed, **settings}))


@pytest.mark.parametrize("name", METHODS)
def test_the_bytes_that_it_names_are_those_that_it_keeps(name: str):
    """Every tensor of its state counts, but for the numbers of samples."""
    stream = problem()
    learner = attached(small(METHODS[name], {}), model_for(stream))
    for number in (1, 2):
        with learner.learning(stream.task(number)):
            inputs, targets = stream.task(number).train.samples()
            learner.optimizer.zero_grad()
            (learner.loss(learner.model(inputs), targets) + learner.penalty()).backward()
            learner.optimizer.step()
        kept = tensor_bytes(learner.method.state_dict())
        aside = 48 * number
        assert kept - aside <= learner.method.nbytes() <= kept
